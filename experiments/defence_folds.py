"""Compare a defence with plain training over five folds of images and several seeds, both random.

    python experiments/defence_folds.py split --data DATA --out folds
    python experiments/defence_folds.py table runs/fold? --seeds 10 --out docs/research/defence_folds.csv

`split` divides all images of DATA/coco/captions_{train,test}.json into five folds. Fold K is trained on
`folds/K/train.json`, the images of the four others, and evaluated on `folds/K/data`: a data folder in the documented
layout that contains the images of fold K only, so that no benchmark has an item on a training image.

`table` reads the folders of five sweeps, one per fold, with the same arms and seeds. Every image is held out once. The
counts of all folds with training seed s are one run of 2,851 images. `claims` has the tests. Its intervals hold the
folds fixed; each row also has the difference in each fold, with

    over folds     mean of the folds' differences, and Student's interval and test over the five

and the row of FR@1

    ratio          percentile bootstrap of FR@1 of the defence / FR@1 of plain: the images are drawn once for all
                   runs, the seeds of each arm independently
"""

import argparse
import dataclasses
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from claims import Claim, Comparison, Runs, compare_arms, read_counts, runs_by_arm, write_claims
from scipy import stats

from rococo_jax.evaluation.results import RESULTS
from rococo_jax.evaluation.stored_counts import CountsByVariant
from rococo_jax.metrics.counts import Counts

FOLDS = 5
SEED = 0
CAPTIONS = ("captions_train.json", "captions_test.json")
# Folders of DATA that every fold needs, besides the images.
ANNOTATIONS = ("rococo", "sugar_crepe", "sugarcrepe_pp")
REFERENCE, DEFENCE = "plain", "kinds-no-sc"
ALTERED = ("same_concept", "diff_concept", "rand_voca", "danger")


CLAIMS = (
    Claim("R@1, image to text", "image_to_text", ("clean",), "r1", "higher", "equivalence", 2.0),
    Claim("R@1, text to image", "text_to_image", ("clean",), "r1", "higher", "equivalence", 2.0),
    Claim("FR@1", "image_to_text", ALTERED, "fr1", "lower", "difference", 2.0),
    Claim("blind", "image_to_text", ALTERED, "blind", None, "equivalence", 5.0, target=50.0),
    Claim("SugarCrepe grounding", "sugarcrepe", (), "grounding", "higher", "difference", 1.0),
    Claim("SugarCrepe accuracy", "sugarcrepe", (), "ota", "higher", "difference", 2.0),
    Claim("SugarCrepe++ ITT", "sugarcrepe_pp", (), "ata", "higher", "difference", 2.0),
    # Described without a test.
    Claim("grounding", "image_to_text", ALTERED, "grounding", "higher", None, 2.0),
    Claim("SugarCrepe blind", "sugarcrepe", (), "blind", None, None, 5.0, target=50.0),
)


def split(data: Path, out: Path) -> None:
    """Write the captions and the data folder of each fold."""
    images = [image for name in CAPTIONS for image in json.loads((data / "coco" / name).read_text())]
    images.sort(key=lambda image: image["image"])
    fold_of_image = np.random.default_rng(SEED).permutation(len(images)) % FOLDS
    for fold in range(FOLDS):
        folder = out / str(fold)
        held_out = [image for image, number in zip(images, fold_of_image, strict=True) if number == fold]
        training = [image for image, number in zip(images, fold_of_image, strict=True) if number != fold]
        for image in held_out:
            link = folder / "data/coco/images" / image["image"]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((data / "coco/images" / image["image"]).resolve())
        for name in ANNOTATIONS:
            (folder / "data" / name).symlink_to((data / name).resolve())
        (folder / "train.json").write_text(json.dumps(training))
        (folder / "held.json").write_text(json.dumps(held_out))
        print(f"fold {fold}: {len(training)} images to train on, {len(held_out)} held out")


def read_sweep(folder: Path, seeds: Collection[int] | None = None) -> dict[tuple[str, int], CountsByVariant]:
    """Return the counts of the evaluated runs of a sweep with these seeds, or with all, by arm and seed."""
    counts = {}
    for path in sorted(folder.glob(f"points/*/evaluation/{RESULTS}")):
        name = path.parent.parent.name  # ARM-steps_N-SEED
        arm, seed = name.partition("-steps_")[0], int(name.rpartition("-")[2])
        if seeds is None or seed in seeds:
            counts[arm, seed] = read_counts(path.parent)
    return counts


def stack_folds(folds: Sequence[Counts]) -> Counts:
    """Return the counts of folds without common images as those of one run, in the order of the images' names."""
    names = np.concatenate([fold.units for fold in folds])
    if len(np.unique(names)) < len(names):
        raise ValueError("an image is held out in two folds")
    order = np.argsort(names)
    runs = zip(*(fold.runs for fold in folds), strict=True)
    stacked = (np.concatenate([fold.sums for fold in of_run])[order] for of_run in runs)
    return Counts(
        tuple(
            dataclasses.replace(run, units=names[order], sums=sums)
            for run, sums in zip(folds[0].runs, stacked, strict=True)
        )
    )


def variants_of(claim: Claim, counts: CountsByVariant) -> tuple[str, ...]:
    """Return the variants of a claim: those that it names, or all parts of its task."""
    pooled = ("all", "mean")
    return claim.variants or tuple(name for task, name in counts if task == claim.task and name not in pooled)


def runs_of(
    claim: Claim, folds: Sequence[dict[tuple[str, int], CountsByVariant]], seeds: Sequence[int]
) -> dict[str, Runs]:
    """Return the runs of plain and of the defence; each is the mean over the variants of all folds with one seed."""
    variants = variants_of(claim, folds[0][REFERENCE, seeds[0]])
    counts: dict[str, list[Counts]] = {REFERENCE: [], DEFENCE: []}
    for arm, runs in counts.items():
        for seed in seeds:
            parts = [stack_folds([fold[arm, seed][claim.task, name] for fold in folds]) for name in variants]
            runs.append(Counts.mean(parts))
    return runs_by_arm(counts, claim.metric)


def bootstrap_ratio(model: Runs, reference: Runs, seed: int = SEED) -> tuple[float, float, float]:
    """Return 100 * the ratio of the means over seeds, and its 95 % interval over seeds and images."""
    generator = np.random.default_rng(seed)
    means = []
    for runs in (model, reference):
        draws, count = runs.drawn.shape
        seeds = generator.integers(0, count, (draws, count))
        means.append(np.take_along_axis(runs.drawn, seeds, axis=1).mean(axis=1))
    low, high = np.percentile(100 * means[0] / means[1], [2.5, 97.5])
    return float(100 * model.values.mean() / reference.values.mean()), float(low), float(high)


def over_folds(differences: Sequence[float]) -> dict[str, str]:
    """Return the columns of Student's 95 % interval of the mean of the folds' differences, and its two-sided p."""
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(0.95)
    return {"over folds low": f"{low:+.2f}", "over folds high": f"{high:+.2f}", "p over folds": f"{test.pvalue:.2g}"}


def compare_folds(
    claim: Claim, folds: Sequence[dict[tuple[str, int], CountsByVariant]], seeds: Sequence[int]
) -> Comparison:
    """Compare the arms over all folds, with the difference in each fold and for FR@1 the ratio."""
    arms = runs_of(claim, folds, seeds)
    comparison = compare_arms(claim, arms)
    first_runs = [fold[REFERENCE, seeds[0]] for fold in folds]
    variants = variants_of(claim, first_runs[0])
    images = {name for run in first_runs for variant in variants for name in run[claim.task, variant].units}
    row = comparison.row | {"images": len(images)}
    differences = []
    for fold in folds:
        of_fold = runs_of(claim, [fold], seeds)
        differences.append(float(of_fold[DEFENCE].values.mean() - of_fold[REFERENCE].values.mean()))
    row |= {f"fold {number}": f"{difference:+.2f}" for number, difference in enumerate(differences)}
    row |= over_folds(differences)
    if claim.metric == "fr1":
        ratio, ratio_low, ratio_high = bootstrap_ratio(arms[DEFENCE], arms[REFERENCE])
        row |= {"ratio, %": f"{ratio:.1f}", "ratio low": f"{ratio_low:.1f}", "ratio high": f"{ratio_high:.1f}"}
    return dataclasses.replace(comparison, row=row)


def table(folders: Sequence[Path], seeds: Sequence[int], out: Path) -> None:
    """Write and print a row for each claim."""
    folds = [read_sweep(folder, seeds) for folder in folders]
    expected = {(arm, seed) for arm in (REFERENCE, DEFENCE) for seed in seeds}
    for folder, fold in zip(folders, folds, strict=True):
        if missing_runs := sorted(expected - set(fold)):
            raise ValueError(f"{folder}: no results of {missing_runs}")
    write_claims([compare_folds(claim, folds, seeds) for claim in CLAIMS], out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitter = commands.add_parser("split", help="write the folds")
    splitter.add_argument("--data", type=Path, required=True, help="data folder in the documented layout")
    splitter.add_argument("--out", type=Path, required=True)
    tabulator = commands.add_parser("table", help="compare the arms over all folds and seeds")
    tabulator.add_argument("folders", nargs="+", type=Path, metavar="SWEEP", help="working folders of the sweeps")
    tabulator.add_argument("--seeds", type=int, required=True, metavar="N", help="compare the seeds 1 to N")
    tabulator.add_argument("--out", type=Path, required=True, help="the table, CSV")
    arguments = parser.parse_args()
    if arguments.command == "split":
        split(arguments.data, arguments.out)
    else:
        table(arguments.folders, range(1, arguments.seeds + 1), arguments.out)


if __name__ == "__main__":
    main()
