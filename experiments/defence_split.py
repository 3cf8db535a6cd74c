"""Split training images for a defence that is chosen without its test, and write what the held-out ones are asked.

    python experiments/defence_split.py --data DATA --out split [--held 300]

    split/fit.json     training images on which no item of SugarCrepe or SugarCrepe++ lies: what models are trained on
    split/held.json    `--held` others of these: what settings are chosen by
    split/kinds.jsonl  altered captions of every kind on the held-out images, as items of the plain form of choices

Training images with an item are in neither: they, and the images of the Karpathy test split, are the test.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.plain_choices import text_choice
from rococo_jax.perturb.text.kinds import KINDS, KindAlterer
from rococo_jax.perturb.text.lexicon import shipped_lexicon

TESTS = ("sugar_crepe", "sugarcrepe_pp")
# Of the alterations that models are judged by; pools of training are drawn from seed 0.
SEED = 1


def images_of_items(folder: Path) -> set[str]:
    """Numbers of COCO's images that a benchmark asks about."""
    names: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        value = json.loads(path.read_text())
        names |= {item["filename"] for item in (value.values() if isinstance(value, dict) else value)}
    return {name.rpartition("_")[2] for name in names}


def items_of_kinds(images: list[dict]) -> list[dict]:
    """An item for each kind of each caption that has one."""
    items = []
    for kind in KINDS:
        alterer = KindAlterer(kind, shipped_lexicon(), seed=SEED)
        for image in images:
            for number, caption in enumerate(image["caption"]):
                for altered in alterer.alter(caption, image["caption"]):
                    name = Path(image["image"]).name
                    items.append(text_choice(f"{kind} {name} {number}", kind, [caption], altered.caption, name))
    return items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="holds coco/ and the benchmarks' folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held", type=int, default=300)
    arguments = parser.parse_args()
    images = json.loads((arguments.data / "coco/captions_train.json").read_text())
    asked = set.union(*(images_of_items(arguments.data / name) for name in TESTS))
    others = [image for image in images if image["image"].rpartition("_")[2] not in asked]
    held = set(np.random.default_rng(0).permutation(len(others))[: arguments.held].tolist())
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = {
        "fit": [image for number, image in enumerate(others) if number not in held],
        "held": [image for number, image in enumerate(others) if number in held],
    }
    for name, part in parts.items():
        (arguments.out / f"{name}.json").write_text(json.dumps(part))
    items = items_of_kinds(parts["held"])
    lines = "".join(json.dumps(item) + "\n" for item in items)
    (arguments.out / "kinds.jsonl").write_text(lines)
    counts = {kind: sum(item["part"] == kind for item in items) for kind in KINDS}
    sizes = {name: len(part) for name, part in parts.items()}
    print(f"{len(images)} images, {len(asked)} asked about; {sizes}; {counts}")


if __name__ == "__main__":
    main()
