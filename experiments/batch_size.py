"""What does a larger batch buy, and what do captions that name more attributes? On drawn scenes of two things.

    python experiments/batch_size.py data --out pairs
    python experiments/batch_size.py rates --runs runs/rates-* --out batch_size_rates.csv
    python experiments/batch_size.py table --runs runs/models-* --out batch_size.csv

`data` draws scenes of two things of different kinds and colours, one left of the other, and writes

    train/                  40,000 scenes: images/, and sparse.json and dense.json, whose captions name a colour with a
                            probability of 25 and 100 % and are equal otherwise
    validation/, test/      500 and 1,000 scenes of other compositions: images/, rococo/annotations/ (a noun of a
                            caption is replaced) and choices/items.jsonl

All captions of validation and test are dense. An item of `items.jsonl` is a caption of a scene beside one with a noun
or a colour that is not in the scene, or with the two colours exchanged: only this one needs to know which thing has
which colour.

`rates` writes the R@1 on the validation scenes of each batch size and learning rate, and chooses the rate with the
highest after the most pairs. `table` writes the metrics of each batch size, kind of captions and length of training
over seeds and images, and beside it the tests (`claims`).
"""

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from claims import Claim, compare_arms, counts_of_claim, runs_by_arm, write_claims
from end_to_end import VARIANTS, demo_lexicon_with, folders_by_arm, nouns_of_captions

from rococo_jax.benchmarks.readers.plain_choices import text_choice
from rococo_jax.benchmarks.rococo.generate import alter_captions, write_altered
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import article_of
from rococo_jax.demo.drawing import RandomStream
from rococo_jax.demo.objects import ANY, OBJECTS, PLACES
from rococo_jax.demo.scenes import Item, Scene, draw_scene
from rococo_jax.evaluation.results import RESULTS
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.progress import progress
from rococo_jax.report.across_seeds import interval
from rococo_jax.storage import read_json, write_csv_rows, write_json, write_json_lines

SEED, SIDE, CAPTIONS = 71, 64, 5
SCENES = {"train": 40_000, "validation": 500, "test": 1000}
DENSITIES = {"sparse": 0.25, "dense": 1.0}
# Kinds that occur in every colour, so that exchanging two colours gives a scene that could occur as well.
KINDS = tuple(kind for kind in OBJECTS if not kind.flies and set(ANY) <= set(kind.colours))
RELATIONS = {"left of": ("to the left of", "on the left of"), "right of": ("to the right of", "on the right of")}
OPPOSITE = {"left of": "right of", "right of": "left of"}
PARTS = ("noun", "colour", "exchanged colours")

METRICS = (
    Claim("R@1, image to text", "image_to_text", ("clean",), "r1", "higher", None, 3.0),
    Claim("R@1, text to image", "text_to_image", ("clean",), "r1", "higher", None, 3.0),
    Claim("FR@1", "image_to_text", VARIANTS, "fr1", "lower", None, 3.0),
    *(Claim(f"accuracy, {part}", "choices", (part,), "ota", "higher", None, 3.0) for part in PARTS),
)
# Tested with Holm's correction over these pairs of arms, each after its longest training.
TESTED = ("FR@1", "accuracy, exchanged colours")
PAIRS_OF_ARMS = {
    "dense, batch of 1024 minus 16": (("dense", 16), ("dense", 1024)),
    "sparse, batch of 256 minus 64": (("sparse", 64), ("sparse", 256)),
    "dense minus sparse, batch of 64": (("sparse", 64), ("dense", 64)),
}


class Arm(NamedTuple):
    """What the runs of an arm have in common, apart from the learning rate."""

    captions: str
    batch_size: int
    pairs: int


def make_scenes(split: str, count: int) -> Iterator[Scene]:
    """Yield scenes of two things whose compositions (two kinds and a place) occur in this split only."""
    index = 0
    rng = RandomStream("two things", split, SEED)
    while index < count:
        place, (main, other, *_), colours = rng.choose(PLACES), rng.shuffled(KINDS), rng.shuffled(ANY)
        relation = rng.choose(tuple(RELATIONS))
        scene = Scene((split, SEED, index), place, Item(main, colours[0]), relation, Item(other, colours[1]))
        if scene.split == split:
            yield scene
            index += 1


def things_of(scene: Scene) -> list[Item]:
    """Return the two things of a scene."""
    return [thing for thing in (scene.main, scene.other) if thing is not None]


def captions_of(scene: Scene, density: float) -> list[str]:
    """Return captions that name each colour with this probability. Their other words do not depend on it."""
    words, named = RandomStream("words", *scene.key), RandomStream("named", *scene.key)
    captions = []
    for _ in range(CAPTIONS):
        relation, things = scene.relation, things_of(scene)
        if words.chance(0.5):
            relation, things = OPPOSITE[relation], things[::-1]
        nouns = [words.choose(thing.kind.nouns) for thing in things]
        between, place = words.choose(RELATIONS[relation]), words.choose(scene.place.phrases)
        colours = [thing.colour if named.chance(density) else "" for thing in things]
        captions.append(caption_of(nouns, colours, between, place))
    return captions


def caption_of(nouns: Sequence[str], colours: Sequence[str], between: str, place: str) -> str:
    """Return a caption of two things, each with its colour or, where that is empty, without."""
    phrases = []
    for noun, colour in zip(nouns, colours, strict=True):
        words = [colour, noun] if colour else [noun]
        phrases.append(" ".join([article_of(words[0]), *words]))
    return f"{phrases[0]} {between} {phrases[1]} {place}"


def false_captions(scene: Scene) -> dict[str, tuple[str, str]]:
    """Return by part a true caption of the scene and a false one that differs from it in one or two words."""
    rng = RandomStream("false", *scene.key)
    things, between = things_of(scene), rng.choose(RELATIONS[scene.relation])
    nouns, colours = [rng.choose(thing.kind.nouns) for thing in things], [thing.colour for thing in things]
    place, changed = rng.choose(scene.place.phrases), rng.choose((0, 1))
    false_nouns, false_colours = list(nouns), list(colours)
    absent = [kind for kind in KINDS if kind not in [thing.kind for thing in things]]
    false_nouns[changed] = rng.choose(rng.choose(absent).nouns)
    false_colours[changed] = rng.choose([colour for colour in ANY if colour not in colours])
    true = caption_of(nouns, colours, between, place)
    false = [
        caption_of(*words, between, place)
        for words in ((false_nouns, colours), (nouns, false_colours), (nouns, colours[::-1]))
    ]
    return {part: (true, each) for part, each in zip(PARTS, false, strict=True)}


def write_split(split: str, out: Path) -> None:
    """Draw the scenes of a split and write their captions, or for those of an evaluation altered captions and items."""
    scenes = list(make_scenes(split, SCENES[split]))
    (out / "images").mkdir(parents=True)
    with progress(f"drawing {split}", len(scenes), "scenes") as advance:
        for scene in scenes:
            draw_scene(scene, SIDE).save(out / "images" / f"{scene.name}.png", compress_level=3)
            advance(1)
    if split == "train":
        for name, density in DENSITIES.items():
            captions = [{"image": f"{scene.name}.png", "caption": captions_of(scene, density)} for scene in scenes]
            write_json(out / f"{name}.json", captions)
        return
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene, 1.0))) for scene in scenes]
    lexicon = Lexicon.from_json(demo_lexicon_with(nouns_of_captions(KINDS).__contains__), "captions")
    sets = alter_captions(None, items, VARIANTS, lexicon=lexicon, seed=SEED, select="random", fit_article=True)
    for variant, altered in sets.items():
        write_altered(
            out / "rococo" / "annotations" / f"{variant}.json", altered, {"lexicon": lexicon.hash(), "seed": SEED}
        )
    lines = [
        text_choice(f"{part} {scene.name}", part, [true], false, f"{scene.name}.png")
        for scene in scenes
        for part, (true, false) in false_captions(scene).items()
    ]
    write_json_lines(out / "choices" / "items.jsonl", lines)


def evaluated_runs(sweeps: Sequence[Path]) -> Iterator[tuple[Arm, float, Path]]:
    """Yield the arm, the learning rate and the results of each run of the sweeps that has results."""
    for captions, folders in folders_by_arm(sweeps, tuple(DENSITIES)).items():
        for folder in folders:
            if (folder / "evaluation" / RESULTS).is_file():
                config = read_json(folder / "config.json", "the config of a run")
                arm = Arm(captions, config["batch_size"], config["batch_size"] * config["steps"])
                yield arm, config["optimizer.learning_rate"], folder / "evaluation"


def longest_training(arms: Iterable[Arm]) -> dict[tuple[str, int], Arm]:
    """Return the arm with the most pairs by kind of captions and batch size."""
    return {(arm.captions, arm.batch_size): arm for arm in sorted(arms)}


def write_rates(sweeps: Sequence[Path], out: Path) -> None:
    """Write the mean R@1 of both directions for each learning rate, and mark the best one after the most pairs."""
    scores: dict[Arm, dict[float, float]] = defaultdict(dict)
    for arm, rate, results in evaluated_runs(sweeps):
        of_directions = [counts_of_claim([results], metric)[0].value("r1") for metric in METRICS[:2]]
        scores[arm][rate] = sum(of_directions) / 2
    lines: list[list[object]] = [[*Arm._fields, "learning_rate", "R@1", "chosen"]]
    longest = longest_training(scores)
    for arm, of_rates in sorted(scores.items()):
        best = max(of_rates, key=of_rates.__getitem__)
        is_longest = arm == longest[arm.captions, arm.batch_size]
        if is_longest and best in (min(of_rates), max(of_rates)):
            print(f"{arm.captions}, batch size {arm.batch_size}: the best rate, {best}, is at an end of the range")
        for rate, r1 in sorted(of_rates.items()):
            lines.append([*arm, f"{rate:g}", f"{r1:.2f}", "yes" if is_longest and rate == best else ""])
    write_csv_rows(out, lines)


def write_table(sweeps: Sequence[Path], out: Path) -> None:
    """Write the metrics of each arm, and beside them the tests of the arms with the longest training."""
    results: dict[Arm, list[Path]] = defaultdict(list)
    rates = {}
    for arm, rate, folder in evaluated_runs(sweeps):
        results[arm].append(folder)
        rates[arm] = rate
    header = (*Arm._fields, "learning_rate", "seeds", "metric", "mean", "SD of seeds", "low", "high")
    lines: list[list[object]] = [[*header]]
    for arm in sorted(results):
        for metric in METRICS:
            runs = runs_by_arm({"": counts_of_claim(results[arm], metric)}, metric.metric)[""]
            deviation = f"{runs.values.std(ddof=1):.2f}" if len(runs.values) > 1 else ""
            ends = [f"{end:.2f}" for end in interval(*runs)]
            mean = f"{runs.values.mean():.2f}"
            lines.append([*arm, f"{rates[arm]:g}", len(runs.values), metric.name, mean, deviation, *ends])
    write_csv_rows(out, lines)
    longest = longest_training(results)
    comparisons = []
    for pair, arms in PAIRS_OF_ARMS.items():
        for metric in METRICS:
            test: Literal["difference"] | None = "difference" if metric.name in TESTED else None
            claim = dataclasses.replace(metric, name=f"{metric.name}: {pair}", test=test)
            counts = {
                name: counts_of_claim(results[longest[arm]], metric)
                for name, arm in zip(("first", "second"), arms, strict=True)
            }
            comparisons.append(compare_arms(claim, runs_by_arm(counts, metric.metric)))
    write_claims(comparisons, out.with_stem(f"{out.stem}_tests"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("data", help="draw the scenes and write their captions")
    writer.add_argument("--out", type=Path, required=True)
    for name, text in (("rates", "choose the learning rates"), ("table", "tabulate the models and test differences")):
        tabulator = commands.add_parser(name, help=text)
        tabulator.add_argument("--runs", nargs="+", type=Path, required=True, help="working folders of the sweeps")
        tabulator.add_argument("--out", type=Path, required=True, help="the table, CSV")
    arguments = parser.parse_args()
    if arguments.command == "data":
        for split in SCENES:
            write_split(split, arguments.out / split)
    elif arguments.command == "rates":
        write_rates(arguments.runs, arguments.out)
    else:
        write_table(arguments.runs, arguments.out)


if __name__ == "__main__":
    main()
