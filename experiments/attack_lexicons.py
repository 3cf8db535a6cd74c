"""Attack the demo's models under equal lexicons: how much of a defence's advantage is a smaller search space?

    python experiments/attack_lexicons.py --out attack_lexicons.csv [--scenes 100] [--models demo:plain,...]

Drawn scenes of seed 61; every caption of a scene may change. Each model is attacked exhaustively with one word, with
all nouns of the demo's lexicon and with words of captions only, by RoCOCO's replacement and by all kinds; and by a beam
with two words. A row has R@1 before and after, survival and FR@1 with intervals, for the goals `gallery` and `own`, and
the curve over queries.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path

from rococo_jax.attacks.changes import DEFAULT_CHANGES
from rococo_jax.attacks.run import AttackedData, attack_models
from rococo_jax.attacks.settings import CaptionAttack
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import load_encoder

SETTINGS = {
    "one noun, all nouns": dict(kinds=("same_concept",)),
    "one noun, nouns of captions": dict(kinds=("same_concept",), known_words=True),
    "one word, all kinds, all words": dict(kinds=DEFAULT_CHANGES),
    "one word, all kinds, words of captions": dict(kinds=DEFAULT_CHANGES, known_words=True),
    "two nouns, nouns of captions, beam": dict(
        kinds=("same_concept",), known_words=True, budgets=(1, 2), search="beam"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--models", default="demo:plain,demo:sc-vc,demo:grounded")
    arguments = parser.parse_args()
    scenes = [make_scene("test", 61, index) for index in range(arguments.scenes)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / item.image for item in items]
        for scene, file in zip(scenes, files, strict=True):
            draw_scene(scene, 256).save(file, compress_level=1)
        models = {name.removeprefix("demo:"): load_encoder(name) for name in arguments.models.split(",")}
        for label, settings in SETTINGS.items():
            for goal in ("gallery", "own"):
                attack = CaptionAttack("words", settings.get("budgets", (1,)), goal, demo_lexicon(), seed=61)
                attack = CaptionAttack(**{**vars(attack), **settings})
                folders = {name: Path(folder) / label / goal / name for name in models}
                data = AttackedData(items, files, f"scenes {arguments.scenes}")
                attacked, comparison = attack_models(models.__getitem__, folders, data, [attack], EmbeddingCache(None))
                for name, model in attacked.items():
                    results = model.summary["results"]["words"]
                    for changes in results["certificates"]:
                        values, intervals = results["values"], results["intervals"]
                        row = {"attack": label, "goal": goal, "changes": changes, "model": name, "r1": values["r1"]}
                        for metric in (f"r1_{changes}", f"survival_{changes}", f"fr1_{changes}"):
                            row |= {metric.split("_")[0] + "_after": round(values[metric], 2)}
                            row |= {f"{metric.split('_')[0]}_interval": [round(end, 1) for end in intervals[metric]]}
                        row["median_candidates"] = sorted(each["candidates"] for each in model.records["words"])[
                            len(items) // 2
                        ]
                        row["curve"] = json.dumps([[e["queries"], round(e["r1"], 1)] for e in results["curve"]])
                        rows.append(row)
                        print(json.dumps(row), flush=True)
                for each in comparison["words"]["differences"]:
                    print(
                        json.dumps({key: each[key] for key in ("model", "metric", "points", "p_corrected")}), flush=True
                    )
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
