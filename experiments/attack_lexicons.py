"""Attack the demo's models under equal lexicons: how much of a defence's advantage is a smaller search space?

    python experiments/attack_lexicons.py --out attack_lexicons.csv [--scenes 500] [--folder DIR]

Scenes of the split `test` and seed 63, whose compositions occur in no training scene; every caption of a scene may
change. The shipped demo models are attacked with all nouns of the demo's lexicon and with words of captions only, by
RoCOCO's replacement of nouns and by all kinds of changes, with one and with two changes. One change and two nouns are
searched exhaustively; two changes of all kinds by a beam.

OUT has a row for each attack, goal, number of changes and model; OUT with `_tests` before its extension has the paired
tests against the plain model. Two hypotheses are primary and corrected together: the goal `own` with nouns of captions,
and the points that leaving out the other nouns gives back. All other tests are corrected together as a second family.
Attacks that were finished in DIR are not repeated.
"""

import argparse
import csv
import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import rococo_jax.attacks.captions as captions_attack
from rococo_jax.attacks.captions import CaptionAttack
from rococo_jax.attacks.changes import DEFAULT_CHANGES
from rococo_jax.attacks.run import AttackedData, attack_models
from rococo_jax.attacks.summary import Record
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import load_encoder
from rococo_jax.metrics.counts import Counts, Run
from rococo_jax.metrics.metric import ROWS, Metric, share
from rococo_jax.metrics.paired import paired_differences
from rococo_jax.storage import hash_json

SEED = 63
MODELS = ("plain", "sc-vc", "grounded")
ALL_NOUNS, NOUNS_OF_CAPTIONS = "nouns, all of the lexicon", "nouns, those of captions"
SETTINGS = {
    ALL_NOUNS: dict(kinds=("same_concept",), budgets=(1,)),
    NOUNS_OF_CAPTIONS: dict(kinds=("same_concept",), known_words=True, budgets=(1, 2)),
    "all kinds, all words": dict(kinds=DEFAULT_CHANGES, budgets=(1,)),
    "all kinds, words of captions": dict(
        kinds=DEFAULT_CHANGES, known_words=True, budgets=(1, 2), search="beam"
    ),
}  # fmt: skip
GOALS = ("own", "gallery")
# Numbers of tries with one change after which survival is tested, besides all of them.
TRIES = (16, 64)
PRIMARY = (f"own: {NOUNS_OF_CAPTIONS}, 1 change", "own: gain from leaving out the other nouns")


def remember(encode: Callable[[Sequence[str]], np.ndarray]) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that encodes each text once: most altered captions belong to several attacks."""
    embeddings: dict[str, np.ndarray] = {}

    def encode_new(texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in embeddings]
        if new:
            embeddings.update(zip(new, encode(new), strict=True))
        return np.stack([embeddings[text] for text in texts])

    return encode_new


def survival(records: Sequence[Record], goal: str, label: str) -> dict[str, np.ndarray]:
    """Return whether each scene survives, by test: after all changes of each budget, and after fewer tries."""
    right = np.array([record["right"] for record in records])
    columns = {}
    for changes in SETTINGS[label]["budgets"]:
        fooled = np.array([record["smallest"] is not None and record["smallest"] <= changes for record in records])
        columns[f"{goal}: {label}, {changes} change{'s' * (changes > 1)}"] = right & ~fooled
    for tries in TRIES:
        fooled = np.array([record["first"] is not None and record["first"] <= tries for record in records])
        columns[f"{goal}: {label}, {tries} tries"] = right & ~fooled
    return {name: column.astype(float) for name, column in columns.items()}


def paired_tests(columns: Mapping[str, Mapping[str, np.ndarray]]) -> list[dict[str, object]]:
    """Return the differences of each model from the first, of all tests and of the gain."""
    names = list(columns[MODELS[0]])
    metrics = {name: Metric(name, name, "higher", "%", "share of scenes", "ours", share(name)) for name in names}
    gain, before = PRIMARY[1], f"own: {ALL_NOUNS}, 1 change"
    metrics[gain] = Metric(
        gain, gain, "higher", "points", "gain", "ours", lambda shares: shares[PRIMARY[0]] - shares[before]
    )
    scenes = np.arange(len(columns[MODELS[0]][names[0]]))

    def counts_of(model: str, selected: Mapping[str, Metric]) -> Counts:
        sums = np.column_stack([*columns[model].values(), np.ones(len(scenes))])
        return Counts((Run(scenes, sums, (*names, ROWS), selected),))

    rows = []
    for family in ("primary", "other"):
        selected = {name: metric for name, metric in metrics.items() if (name in PRIMARY) == (family == "primary")}
        comparisons = [(counts_of(name, selected), counts_of(MODELS[0], selected)) for name in MODELS[1:]]
        for name, differences in zip(MODELS[1:], paired_differences(comparisons), strict=True):
            for test, each in differences.items():
                row = {"family": family, "test": test, "model": name, "reference": MODELS[0]}
                values = {key: getattr(each, key) for key in ("points", "low", "high", "p", "p_corrected", "mde")}
                rows.append(row | {key: value and round(float(value), 4) for key, value in values.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where attacks are kept (default: nowhere)")
    arguments = parser.parse_args()
    scenes = [make_scene("test", SEED, index) for index in range(arguments.scenes)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]
    rows, columns, lexicon = [], {name: {} for name in MODELS}, demo_lexicon()
    find_changes = functools.cache(captions_attack.word_changes)  # the same for all models and goals
    captions_attack.word_changes = lambda caption, originals, lexicon, kinds, allowed: find_changes(
        caption, originals, lexicon, tuple(kinds), allowed
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        files = [Path(temporary) / item.image for item in items]
        for scene, file in zip(scenes, files, strict=True):
            draw_scene(scene, 256).save(file, compress_level=1)
        data = AttackedData(items, files, hash_json([SEED, arguments.scenes]))
        cache = EmbeddingCache(None)
        for name in MODELS:
            model = load_encoder(f"demo:{name}")
            model.encode_text = remember(model.encode_text)
            for label, settings in SETTINGS.items():
                for goal in GOALS:
                    attack = CaptionAttack(
                        unit="words", goal=goal, lexicon=lexicon, seed=SEED, witness="first", **settings
                    )
                    out = folder / label.replace(", ", "_").replace(" ", "_") / goal / name
                    attacked, _ = attack_models(lambda _, model=model: model, {name: out}, data, [attack], cache)
                    records, summary = attacked[name].records["words"], attacked[name].summary
                    columns[name] |= survival(records, goal, label)
                    rows += rows_of(summary["results"]["words"], records, label, goal, name)
    write(arguments.out, rows)
    write(arguments.out.with_stem(f"{arguments.out.stem}_tests"), paired_tests(columns))


def rows_of(results: Mapping, records: Sequence[Record], label: str, goal: str, model: str) -> list[dict[str, object]]:
    """Return the numbers of one attack, a row for each number of changes."""
    rows = []
    values, intervals = results["values"], results["intervals"]
    for changes in results["certificates"]:
        row = {"attack": label, "goal": goal, "changes": changes, "model": model, "r1": round(values["r1"], 2)}
        for metric in ("r1", "survival", "fr1"):
            row[f"{metric}_after"] = round(values[f"{metric}_{changes}"], 2)
            row[f"{metric}_interval"] = [round(end, 1) for end in intervals[f"{metric}_{changes}"]]
        row["median_candidates"] = sorted(each["candidates"] for each in records)[len(records) // 2]
        row["certificates"] = json.dumps(results["certificates"][changes])
        row["curve"] = json.dumps([[each["queries"], round(each["r1"], 1)] for each in results["curve"]])
        rows.append(row)
    return rows


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
