"""Attack models of `end_to_end.py` under equal lexicons, beside two control arms without a defence.

    python experiments/end_to_end_attacks.py data --scenes scenes
    python experiments/end_to_end_attacks.py table --runs runs/seed-? --evaluations evaluations --out FILE.csv

`data` adds to the folder of `end_to_end.py data`

    attacked/       300 other test scenes (seed 64) with their captions
    unrelated/      3,500 pictures of noise, each with a caption of a training scene in which every noun is replaced by
                    a foreign one: a noun that no caption of a scene contains, but the altered captions of training do

The arm *foreign* is plain training with these pictures beside the 40,000 scenes: it reads foreign nouns as often as a
defended model (20,700 and 19,400 of them), but in captions that are not altered captions of its scenes. The arm
*longer* is plain training with 50 % more steps.

`table` compares each arm with `plain` as `claims` does, with seeds and images both random.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from claims import Claim, compare_arms, counts_of_claim, runs_by_arm, write_claims
from end_to_end import VARIANTS, folders_by_arm, nouns_of_captions
from PIL import Image

from rococo_jax.attacks.run import ITEMS, SUMMARY
from rococo_jax.attacks.summary import counts_of
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.evaluation.results import RESULTS
from rococo_jax.metrics.counts import Counts
from rococo_jax.perturb.text.lexicon import Lexicon, Noun, read_lexicon
from rococo_jax.perturb.text.words import article_of, plain, replace_word, split_words
from rococo_jax.storage import read_table, write_csv_rows, write_json

SCENES, SEED = 300, 64
# With 8 % of the pairs, 1,631 steps read as many scenes as 1,500, and as many foreign nouns as a defended model reads.
UNRELATED, UNRELATED_SEED, SIDE = 3500, 65, 96
ARMS = ("sixteenth", "quarter", "full", "foreign", "longer")
# Evaluations of altered captions: folders beside the sweep's own, and the nouns that replace others in them.
NOUNS = {"evaluation": "nouns of training", "unseen": "unseen nouns", "known": "nouns of captions"}
# Attacks: folders, the numbers of changes, and what they change.
ATTACKS = {
    "noun-own": ((1,), "one noun, own"),
    "noun-gallery": ((1,), "one noun, gallery"),
    "words-own": ((1, 2), "all kinds, own"),
    "words-gallery": ((1, 2), "all kinds, gallery"),
}
# What Holm's correction covers: these claims of these arms.
TESTED = (
    ("sixteenth", "survival, one noun, own, 1"),
    ("sixteenth", "R@1 after, one noun, gallery, 1"),
    ("foreign", "FR@1, nouns of training"),
    ("longer", "FR@1, nouns of training"),
)


def claims() -> list[tuple[str, Claim]]:
    """Return each claim with the folder of its results."""
    rows = [
        ("evaluation", Claim("R@1, image to text", "image_to_text", ("clean",), "r1", "higher", None, 3.0)),
        ("evaluation", Claim("R@1, text to image", "text_to_image", ("clean",), "r1", "higher", None, 3.0)),
    ]
    for folder, nouns in NOUNS.items():
        for name, metric, better in (
            ("FR@1", "fr1", "lower"),
            ("grounding", "grounding", "higher"),
            ("blind", "blind", None),
        ):
            rows.append((folder, Claim(f"{name}, {nouns}", "image_to_text", VARIANTS, metric, better, None, 3.0)))
    for folder, (budgets, label) in ATTACKS.items():
        for changes in budgets:
            for name, metric, better in (
                ("survival", "survival", "higher"),
                ("R@1 after", "r1", "higher"),
                ("FR@1", "fr1", "lower"),
            ):
                claim = Claim(f"{name}, {label}, {changes}", "words", (), f"{metric}_{changes}", better, None, 3.0)
                rows.append((folder, claim))
    return rows


def write_data(scenes: Path) -> None:
    """Write the scenes to attack and the unrelated pictures."""
    attacked = [make_scene("test", SEED, index) for index in range(SCENES)]
    (scenes / "attacked" / "images").mkdir(parents=True)
    for scene in attacked:
        draw_scene(scene, 256).save(scenes / "attacked" / "images" / f"{scene.name}.png", compress_level=3)
    captions = [{"image": f"{scene.name}.png", "caption": list(captions_of(scene))} for scene in attacked]
    write_json(scenes / "attacked" / "captions.json", captions)

    lexicon = read_lexicon(scenes / "lexicon.json")
    foreign = [noun for noun in lexicon.nouns if noun.name not in nouns_of_captions()]
    rng = np.random.default_rng(UNRELATED_SEED)
    (scenes / "unrelated" / "images").mkdir(parents=True)
    unrelated = []
    for index in range(UNRELATED):
        options = captions_of(make_scene("train", UNRELATED_SEED, index))
        caption = with_foreign_nouns(options[rng.integers(len(options))], lexicon, foreign, rng)
        name = f"noise-{index}.png"
        noise = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8)
        Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.NEAREST).save(
            scenes / "unrelated" / "images" / name
        )
        unrelated.append({"image": name, "caption": [caption]})
    write_json(scenes / "unrelated" / "captions.json", unrelated)


def with_foreign_nouns(caption: str, lexicon: Lexicon, foreign: Sequence[Noun], rng: np.random.Generator) -> str:
    """Replace every noun of a caption by a random one of `foreign` in the same number, which fits its article."""
    words = split_words(caption)
    texts = [word.text for word in words]
    # From the end, so that the spans of earlier words stay valid.
    for index in reversed(range(len(words))):
        if lexicon.find(texts[index]) is not None:
            is_plural = lexicon.is_plural(texts, index)
            forms = [form for noun in foreign if (form := noun.form(is_plural)) is not None]
            before = plain(texts[index - 1]) if index else ""
            if before in ("a", "an"):
                forms = [form for form in forms if article_of(form) == before]
            caption = replace_word(caption, words[index], str(rng.choice(forms)))
    return caption


@functools.cache
def attack_counts(folder: Path, budgets: Sequence[int]) -> Counts:
    """Return the counts of each attacked image, which several claims read."""
    rows = read_table(folder / ITEMS, "the queries of an attack").to_pylist()
    return counts_of([row for row in rows if row["attack"] == "words"], budgets)


def table(sweeps: Sequence[Path], evaluations: Path, out: Path) -> None:
    """Write a row for each arm and claim with results of two or more seeds, and beside it the curves of the attacks."""
    folders = folders_by_arm(sweeps, ("plain", *ARMS))

    def results_of(arm: str, folder: str) -> list[Path]:
        in_sweep = folder == "evaluation"
        results = [run / folder if in_sweep else evaluations / folder / run.name for run in folders[arm]]
        return [each for each in results if any((each / name).is_file() for name in (SUMMARY, RESULTS))]

    def counts_of_arm(arm: str, folder: str, claim: Claim) -> list[Counts]:
        if folder in ATTACKS:
            return [attack_counts(each, ATTACKS[folder][0]) for each in results_of(arm, folder)]
        return counts_of_claim(results_of(arm, folder), claim)

    comparisons = []
    for arm in ARMS:
        for folder, claim in claims():
            if len(results_of(arm, folder)) > 1:
                test = "difference" if (arm, claim.name) in TESTED else None
                of_arm = dataclasses.replace(claim, name=f"{arm}: {claim.name}", test=test)
                counts = {name: counts_of_arm(name, folder, claim) for name in ("plain", arm)}
                comparisons.append(compare_arms(of_arm, runs_by_arm(counts, claim.metric)))
    write_claims(comparisons, out)
    lines: list[list[object]] = [["attack", "arm", "run", "queries", "r1", "fr1"]]
    for attack in ATTACKS:
        for arm in folders:
            for folder in results_of(arm, attack):
                summary = json.loads((folder / SUMMARY).read_text())
                for point in summary["results"]["words"]["curve"]:
                    lines.append(
                        [attack, arm, folder.name, point["queries"], f"{point['r1']:.2f}", f"{point['fr1']:.2f}"]
                    )
    write_csv_rows(out.with_stem(f"{out.stem}_curves"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("data", help="write the scenes to attack and the unrelated pictures")
    writer.add_argument("--scenes", type=Path, required=True, help="folder of `end_to_end.py data`")
    tabulator = commands.add_parser("table", help="compare each arm with plain")
    tabulator.add_argument("--runs", nargs="+", type=Path, required=True, help="working folders of the sweeps")
    tabulator.add_argument("--evaluations", type=Path, required=True, help="folders unseen, known and of each attack")
    tabulator.add_argument("--out", type=Path, required=True, help="the table, CSV")
    arguments = parser.parse_args()
    if arguments.command == "data":
        write_data(arguments.scenes)
    else:
        table(arguments.runs, arguments.evaluations, arguments.out)


if __name__ == "__main__":
    main()
