"""Build `rococo_jax/metrics/assets/published.csv`: published retrieval results of checkpoints on COCO.

    python tools/build_published.py openclip_retrieval_results.csv        (needs open_clip, for the hub's names)

The source is the table of retrieval results in open_clip's documentation: 5,000 images of the Karpathy test split with
five captions each. A checkpoint is recognised by its hub name and by `ARCHITECTURE/TAG`. RoCOCO's code contains a log
of OpenAI's ViT-B/32; two of its lines name their task.
"""

import argparse
import csv
from pathlib import Path

from rococo_jax.metrics.published import LABELS, PUBLISHED_VALUES

_KINDS = {"image_to_text": "text", "text_to_image": "image"}
_OPEN_CLIP, _ROCOCO = "open_clip's table of retrieval results", "RoCOCO's log, arXiv 2304.10727"
_LOG = [["image_to_text", "clean", 50.12, 74.66, 83.04, ""], ["text_to_image", "mix_0.9", 19.84, 46.28, 57.34, 37.02]]
# OpenAI's models on the hub, in the format of transformers.
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
        # Weights that were trained with QuickGELU have other results without it.
        if config.get("quick_gelu") and "quickgelu" not in architecture and tag != "openai":
            continue
        names = [f"{architecture}/{tag}", config.get("hf_hub", "").strip("/")]
        plain = architecture.removesuffix("-quickgelu")
        names += [f"openai:{plain}", _OPENAI.get(plain, "")] if tag == "openai" else []
        names_and_row = rows.setdefault(f"{plain} {tag}", (set(), row))
        names_and_row[0].update(filter(None, names))
    with PUBLISHED_VALUES.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["names", "task", "variant", *LABELS, "source"])
        for names, row in rows.values():
            for task, kind in _KINDS.items():
                recalls = [round(100 * float(row[f"MSCOCO {kind} retr. R@{rank}"]), 2) for rank in (1, 5, 10)]
                writer.writerow([" ".join(sorted(names)), task, "clean", *recalls, "", _OPEN_CLIP])
        names = " ".join(sorted(rows["ViT-B-32 openai"][0]))
        writer.writerows([names, *line, _ROCOCO] for line in _LOG)


if __name__ == "__main__":
    main()
