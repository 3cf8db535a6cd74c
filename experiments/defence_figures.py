"""Judge a defended model, put the runs of all arms in a table, and draw the frontier.

Every figure has one value per unit (image, item) in per cent, NaN where a unit has none. Intervals resample units and
keep all seeds of a unit together; differences from the first arm are paired by unit and tested by sign flips
(`rococo_jax.metrics.paired`). Preference, blind and grounding are computed here in NumPy over all wrong partners.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from defence_material import Altered, Choices, Tests

from rococo_jax.encoders import Encoder
from rococo_jax.metrics.intervals import image_draws
from rococo_jax.metrics.paired import paired_differences

GROUPS = {
    "published": ("same_concept", "diff_concept", "rand_voca", "danger"),
    "ordinary": ("ordinary same_concept", "ordinary rand_voca"),
    "balanced": ("balanced same_concept", "balanced rand_voca"),
    "mixed": ("mix", "patch"),
}
# Unit of a figure by the start of its name; images otherwise.
UNITS = {"REPLACE": "items", "Flickr8k": "Flickr8k images", "cues": "cue images"}


def judge(encoder: Encoder, tests: Tests) -> dict[str, np.ndarray]:
    """All figures of a model, by name."""
    project_images = lambda x: np.asarray(encoder.project_image_features(x), np.float64)  # noqa: E731
    project = lambda x: np.asarray(encoder.project_text_features(x), np.float64)  # noqa: E731
    images, texts, owner = project_images(tests.images), project(tests.texts), tests.owner
    scores = images @ texts.T
    count, figures = len(images), {}
    best_own, best_other, first = retrieval(scores, owner)
    figures["i2t R@1"] = 100.0 * (best_own > best_other)
    figures["t2i R@1"] = 100 * per_image(first, owner, count)
    for name, altered in tests.altered.items():
        figures |= _among_altered(name, altered, scores, images, project, owner)
    for method, (features, partner) in tests.mixed.items():
        figures |= among_mixed(method, images, project_images(features), partner, texts, owner)
    for name, choices in tests.choices.items():
        figures |= _choices(name, choices, images, project)
    if tests.replaced is not None:
        caption, positive, negative = map(project, tests.replaced)
        alike = (caption * positive).sum(1) > np.maximum((caption * negative).sum(1), (positive * negative).sum(1))
        figures["REPLACE text-only brittleness"] = 100.0 * ~alike
    if tests.flickr is not None:
        of_images, of_texts, of_caption = project_images(tests.flickr[0]), project(tests.flickr[1]), tests.flickr[2]
        best_own, best_other, first = retrieval(of_images @ of_texts.T, of_caption)
        figures["Flickr8k i2t R@1"] = 100.0 * (best_own > best_other)
        figures["Flickr8k t2i R@1"] = 100 * per_image(first, of_caption, len(of_images))
    if tests.cues is not None:
        features, shape, texture, prompts = tests.cues
        found = (project_images(features) @ project(prompts).T).argmax(1)
        figures["cues shape"] = 100.0 * (found == shape)
        figures["cues shape or texture"] = 100.0 * ((found == shape) | (found == texture))
    return figures


def retrieval(scores: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best own and best other caption of each image, and whether each caption finds its image first; ties lose."""
    own = owner[None] == np.arange(len(scores))[:, None]
    best_own = np.where(own, scores, -np.inf).max(1)
    best_other = np.where(own, -np.inf, scores).max(1)
    first = np.where(own, -np.inf, scores).max(0) < scores[owner, np.arange(len(owner))]
    return best_own, best_other, first.astype(np.float64)


def _among_altered(name: str, altered: Altered, scores, images, project, owner) -> dict[str, np.ndarray]:
    of_altered = images @ project(altered.features).T
    best_own, best_other, _ = retrieval(scores, owner)
    best_altered, owner = of_altered.max(1), owner[altered.caption]
    found = {
        f"{name}: R@1": 100.0 * (best_own > np.maximum(best_other, best_altered)),
        f"{name}: FR@1": 100.0 * (best_altered >= np.maximum(best_own, best_other)),
    }
    pairs = grounding_figures(scores[:, altered.caption] - of_altered, owner)
    return found | {f"{name}: {key}": 100 * per_image(each, owner, len(images)) for key, each in pairs.items()}


def among_mixed(name: str, images, mixed, partner, texts, owner) -> dict[str, np.ndarray]:
    """Captions asked for their image among originals and mixed images; pairs are asked by captions."""
    count, to_images, to_mixed = len(images), images @ texts.T, mixed @ texts.T
    right = to_images[owner, np.arange(len(owner))]
    best_other = np.where(owner[None] == np.arange(count)[:, None], -np.inf, to_images).max(0)
    best_mixed = to_mixed.max(0)
    found = {
        f"{name}: R@1": 100 * per_image((right > np.maximum(best_other, best_mixed)) * 1.0, owner, count),
        f"{name}: FR@1": 100 * per_image((best_mixed >= np.maximum(right, best_other)) * 1.0, owner, count),
    }
    pairs = {key: np.full(count, np.nan) for key in ("preference", "blind", "grounding")}
    for image in np.flatnonzero(partner != np.arange(count)):
        difference = to_images[image] - to_mixed[image]
        own, wrong = difference[owner == image], difference[(owner != image) & (owner != partner[image])]
        pairs["preference"][image] = half_ties(own).mean()
        pairs["blind"][image] = half_ties(wrong).mean()
        pairs["grounding"][image] = half_ties(own[:, None] - wrong[None]).mean()
    return found | {f"{name}: {key}": 100 * each for key, each in pairs.items()}


def _choices(name: str, choices: Choices, images, project) -> dict[str, np.ndarray]:
    right, wrong = [images @ project(each).T for each in choices.right], images @ project(choices.wrong).T
    items, count = np.arange(len(choices.image)), len(images)
    own = [(each - wrong)[choices.image, items] > 0 for each in right]
    found = {f"{name} accuracy": 100 * per_image(np.all(own, 0) * 1.0, choices.image, count)}
    if len(right) == 1:
        pairs = grounding_figures(right[0] - wrong, choices.image)
        found |= {f"{name} {key}": 100 * per_image(each, choices.image, count) for key, each in pairs.items()}
    return found


def grounding_figures(differences: np.ndarray, owner: np.ndarray) -> dict[str, np.ndarray]:
    """Preference, blind and grounding of every pair, from 0 to 1; ties count one half.

    Args:
        differences: (images, pairs), s(I_j, T_k) - s(I_j, T~_k).
        owner: the image of each pair.
    """
    pairs = np.arange(len(owner))
    own, wrong = differences[owner, pairs], np.ones(differences.shape, bool)
    wrong[owner, pairs] = False
    others = wrong.sum(0)
    return {
        "preference": half_ties(own),
        "blind": np.where(wrong, half_ties(differences), 0).sum(0) / others,
        "grounding": np.where(wrong, half_ties(own[None] - differences), 0).sum(0) / others,
    }


def half_ties(differences: np.ndarray) -> np.ndarray:
    """1 where positive, one half where 0."""
    return (np.sign(differences) + 1) / 2


def per_image(values: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """The mean over an image's captions or pairs."""
    with np.errstate(invalid="ignore"):
        return np.bincount(owner, values, minlength=count) / np.bincount(owner, minlength=count)


def read_runs(folder: Path, seeds: tuple[str, ...] = ()) -> dict[str, dict[str, np.ndarray]]:
    """By arm and figure: (seeds, units), of some seeds or all. Figures of a group of variants are means over them."""
    found: dict[str, list[dict]] = {}
    for path in sorted(folder.glob("*.npz")):
        arm, _, seed = path.stem.rpartition("_")
        if not seeds or seed in seeds or arm == "joined":
            found.setdefault(arm, []).append(dict(np.load(path)))
    runs = {arm: {key: np.stack([each[key] for each in seeds]) for key in seeds[0]} for arm, seeds in found.items()}
    for figures in runs.values():
        for group, names in GROUPS.items():
            for metric in ("R@1", "FR@1", "preference", "blind", "grounding"):
                each = [figures[f"{name}: {metric}"] for name in names if f"{name}: {metric}" in figures]
                if each:
                    figures[f"{group} {metric}"] = _mean_of_any(np.stack(each))
    return runs


def _mean_of_any(values: np.ndarray) -> np.ndarray:
    """The mean over the first axis of what is there."""
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0).sum(0) / there.sum(0)


def summarise(runs: dict[str, dict[str, np.ndarray]], first: str) -> dict[str, dict[str, dict]]:
    """By arm and figure: mean, interval, spread over seeds, and the difference from the first arm with its p."""
    table: dict[str, dict[str, dict]] = {arm: {} for arm in runs}
    for column in runs[first]:
        base = runs[first][column].mean(0)
        there = ~np.isnan(base)
        arms = [arm for arm in runs if column in runs[arm]]
        units = np.stack([runs[arm][column].mean(0)[there] for arm in arms], axis=1)
        draws = image_draws(len(units)).astype(np.float64)
        low, high = np.percentile(draws @ units / len(units), [2.5, 97.5], axis=0)
        # One set of sign flips for all arms.
        changes = paired_differences(units / 100, np.tile(base[there, None] / 100, len(arms)), np.ones(units.shape))
        for place, arm in enumerate(arms):
            of_seeds = np.nanmean(runs[arm][column], 1)
            entry = {"mean": float(units[:, place].mean()), "interval": [float(low[place]), float(high[place])]}
            entry |= {"spread over seeds": float(of_seeds.std()), "seeds": len(of_seeds)}
            if arm != first:
                change = changes[place]
                entry |= {"difference": change.points, "interval of it": [change.low, change.high], "p": change.p}
            table[arm][column] = entry
    return table


def markdown(table: dict[str, dict[str, dict]], arms: list[str], columns: list[str], first: str) -> str:
    """A row an arm: the first with intervals, the others with their differences from it, marked where p < 0.05."""
    columns = [column for column in columns if column in table[first]]
    lines = ["| arm | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for arm in arms:
        cells = []
        for column in columns:
            entry = table[arm].get(column)
            if entry is None:
                cells.append("")
            elif arm == first:
                cells.append("{:.1f} ({:.1f}-{:.1f})".format(entry["mean"], *entry["interval"]))
            else:
                low, high = entry["interval of it"]
                mark = "*" if entry["p"] < 0.05 else ""
                cells.append(f"{entry['mean']:.1f} ({low:+.1f} to {high:+.1f}){mark}")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def svg_pyplot(salt: str) -> Any:
    """Matplotlib's pyplot, which draws the same bytes every time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = salt
    from matplotlib import pyplot

    return pyplot


def draw_frontier(table: dict[str, dict[str, dict]], group: str, path: Path) -> None:
    """Clean R@1 against grounding, FR@1 and blind, with curves of weight interpolation from plain to each arm."""
    pyplot = svg_pyplot("defences")
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 5.4), layout="constrained")
    colours = pyplot.get_cmap("tab20")
    for axis, metric in zip(axes, ("grounding", "FR@1", "blind"), strict=True):
        for number, arm in enumerate(arm for arm in table if "@" not in arm):
            between = sorted(name for name in table if name.startswith(f"{arm} @"))
            points = [table[name] for name in (["plain", *between, arm] if between else [arm])]
            clean = [(each["i2t R@1"]["mean"] + each["t2i R@1"]["mean"]) / 2 for each in points]
            values, style = [each[f"{group} {metric}"]["mean"] for each in points], "os^DvP"[number // 10 :][0]
            axis.plot(values, clean, color=colours(number % 20), linewidth=0.8, alpha=0.7)
            axis.scatter(values[-1:], clean[-1:], color=colours(number % 20), marker=style, s=28, label=arm, zorder=3)
        axis.set_xlabel(f"{group} {metric} (%)")
        axis.set_ylabel("clean R@1, mean of both ways (%)")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, metadata={"Date": None})


def write_table(table: dict, path: Path) -> None:
    path.write_text(json.dumps(table, indent=1) + "\n")
