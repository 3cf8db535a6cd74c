"""Makes `rococo_jax/metrics/assets/known_figures.json`: retrieval of known checkpoints on COCO, as published.

    python tools/build_known_figures.py openclip_retrieval_results.csv        (needs open_clip, for the hub's names)

The source is the table of retrieval results in open_clip's documentation: 5,000 images of the Karpathy test split with
five captions each. A checkpoint is known by its names: on the hub, and `ARCHITECTURE/TAG`.
"""

import argparse
import csv
from pathlib import Path

from rococo_jax.metrics.known_figures import COLUMNS, FIGURES, FORMAT
from rococo_jax.storage import write_json

_PUBLISHED = {
    f"{direction}_{name}": f"MSCOCO {kind} retr. R@{rank}"
    for direction, kind in (("image_to_text", "text"), ("text_to_image", "image"))
    for name, rank in (("r1", 1), ("r5", 5), ("r10", 10))
}
# OpenAI's on the hub, in the form of transformers.
_OPENAI = {
    "ViT-B-32": "openai/clip-vit-base-patch32", "ViT-B-16": "openai/clip-vit-base-patch16",
    "ViT-L-14": "openai/clip-vit-large-patch14", "ViT-L-14-336": "openai/clip-vit-large-patch14-336",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    with parser.parse_args().table.open(newline="") as file:
        published = list(csv.DictReader(file))
    from tests.support.golden.make_open_clip import import_open_clip

    open_clip, rows = import_open_clip(), {}
    for row in published:
        architecture, tag = row["name"], row["pretrained"]
        config = open_clip.get_pretrained_cfg(architecture, tag) or {}
        # Run without QuickGELU, weights that were trained with it give other figures.
        if config.get("quick_gelu") and "quickgelu" not in architecture and tag != "openai":
            continue
        names = [f"{architecture}/{tag}", config.get("hf_hub", "").strip("/")]
        plain = architecture.removesuffix("-quickgelu")
        names += [f"openai:{plain}", _OPENAI.get(plain, "")] if tag == "openai" else []
        figures = [round(100 * float(row[_PUBLISHED[column]]), 2) for column in COLUMNS]
        known = rows.setdefault(f"{plain} {tag}", [[], figures])
        known[0] += [name for name in names if name and name not in known[0]]
    write_json(FIGURES, {
        "format": FORMAT,
        "source": "open_clip's table of retrieval results",
        "columns": list(COLUMNS),
        "rows": [[sorted(names), figures] for names, figures in rows.values()],
    })  # fmt: skip


if __name__ == "__main__":
    main()
