"""Three questions about being fooled, one command and one figure each, on a model with both towers.

    python experiments/fooled.py ratio MODEL --data DATA --figure docs/figures/mixing_ratio.svg
    python experiments/fooled.py influence MODEL --data DATA --figure docs/figures/influence_fooled.svg
    python experiments/fooled.py attention MODEL --data DATA --figure docs/figures/attention_fooled.svg

DATA is a folder in the documented layout with COCO's test images and captions (`coco`), and for `influence` training
captions as the reference of balanced ones. Each prints a table; `--out F.json` keeps it.

ratio      Mixed images of ratios from 0.5 to 1 (all of it the image's own: the control): R@1, FR@1, blind, grounding.
influence  Is a caption's image fooled (it prefers the altered caption) where the replaced word has little influence?
attention  Does a caption prefer the mixed image where the image tower looks at the part mixed in?

A question of the last two kinds is answered by an AUROC: how often a pair that fools the model has the lower influence,
or the higher attention, than one that does not; 50 is no relation. Intervals resample images.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from defence_figures import among_mixed, per_image, retrieval, svg_pyplot

from rococo_jax.benchmarks.rococo.generate import alter_captions
from rococo_jax.benchmarks.rococo.mixed_galleries import MixedImages
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.data.images import FileImages
from rococo_jax.encoders import load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.metrics.intervals import image_draws
from rococo_jax.perturb.text.balance import balanced_alterer
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.word_exchange import ReferenceCaptions
from rococo_jax.runtime import cache_folder, enable_compilation_cache
from rococo_jax.studies.attention import choose_pairs

RATIOS, MIXING_SEED, ATTENTION_SEEDS = (0.5, 0.6, 0.7, 0.8, 0.9), 1, (1,)
SELECTIONS, VARIANTS = ("lowest", "random", "highest"), ("same_concept", "rand_voca")
# Concepts with fewer pairs are not shown.
FEWEST_PAIRS = 60


class Measured:
    """A model on COCO's test images and captions."""

    def __init__(self, model: str, data: Path):
        self.encoder, self.cache = load_model(model), EmbeddingCache(cache_folder() / "embeddings")
        self.data = data
        read = read_captioned_images(str(data / "coco/images"), str(data / "coco/captions_test.json"), False)
        self.items = read.items
        self.files = FileImages(tuple(Path(item.image).name for item in read.items), tuple(read.paths))
        self.captions = [caption for item in read.items for caption in item.captions]
        self.owner = np.repeat(np.arange(len(read.items)), [len(item.captions) for item in read.items])
        self.images, self.texts = self.embed(self.files), self.embed_texts(self.captions)

    def embed(self, images) -> np.ndarray:
        return np.asarray(embed_images(self.encoder, images, self.cache), np.float64)

    def embed_texts(self, texts: list[str]) -> np.ndarray:
        return np.asarray(embed_texts(self.encoder, texts, self.cache), np.float64)


def with_interval(values: np.ndarray) -> dict[str, float]:
    """Mean over images and its 95 % interval; NaN where an image has none."""
    values = values[~np.isnan(values)]
    draws = image_draws(len(values)).astype(np.float64)
    low, high = np.percentile(draws @ values / len(values), [2.5, 97.5])
    return {"value": float(values.mean()), "low": float(low), "high": float(high)}


def auroc(score: np.ndarray, fooled: np.ndarray, weights: np.ndarray | None = None) -> float:
    """How often a fooled pair has the higher score, in per cent; ties count one half. Pairs may have weights."""
    weights = np.ones(len(score)) if weights is None else weights
    levels, place = np.unique(score, return_inverse=True)
    of_fooled, of_others = (np.bincount(place, weights * kind, len(levels)) for kind in (fooled, ~fooled))
    with np.errstate(invalid="ignore"):
        below = np.cumsum(of_others) - of_others
        return float(100 * (of_fooled * (below + of_others / 2)).sum() / (of_fooled.sum() * of_others.sum()))


def auroc_with_interval(score: np.ndarray, fooled: np.ndarray, image: np.ndarray) -> dict[str, float]:
    """The AUROC and its 95 % interval; the pairs of an image are drawn together."""
    known, place = np.unique(image, return_inverse=True)
    drawn = [auroc(score, fooled, draw[place]) for draw in image_draws(len(known)).astype(np.float64)]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    found = {"value": auroc(score, fooled), "low": float(low), "high": float(high)}
    return found | {"pairs": len(score), "fooled": float(100 * fooled.mean())}


def ratio(measured: Measured) -> list[dict]:
    """A row for each method and ratio."""
    _, _, first = retrieval(measured.images @ measured.texts.T, measured.owner)
    clean = with_interval(100 * per_image(first, measured.owner, len(measured.images)))
    rows = [{"method": "no mixed images", "ratio": None, "R@1": clean}]
    for method in ("mix", "patch"):
        for each in (*RATIOS, 1.0):
            control = each == 1.0
            choices = ("mix", 1.0, MIXING_SEED, "control") if control else (method, each, MIXING_SEED, "paper")
            plan = make_plan(measured.files.names, *choices)
            partner = np.full(len(plan.first), -1)
            if not control:
                partner[plan.first] = plan.partner
            mixed = measured.embed(MixedImages(measured.files, plan))
            found = among_mixed("", measured.images, mixed, partner, measured.texts, measured.owner)
            true = float(plan.true_ratio.mean())
            row = {"method": method, "ratio": each, "true ratio": true}
            rows.append(row | {key.removeprefix(": "): with_interval(value) for key, value in found.items()})
    return rows


def influence(measured: Measured) -> list[dict]:
    """A row for each way of choosing the word, for parts of speech, and for concepts."""
    encoder, items = measured.encoder, measured.items
    table = list(word_influence(encoder, measured.captions, share_prefix=False))
    first = np.cumsum([0, *(len(item.captions) for item in items)])
    pairs: list[tuple] = []
    lexicon = shipped_lexicon()
    for select in SELECTIONS:
        made = alter_captions(encoder, items, VARIANTS, lexicon=lexicon, select=select, influences=table)
        for variant, altered in made.items():
            for image, row in enumerate(altered.alterations):
                for place, each in enumerate(row):
                    if each is not None:
                        pairs.append((select, variant, first[image] + place, each, "noun"))
    training = read_captioned_images(
        str(measured.data / "coco/images"), str(measured.data / "coco/captions_train.json"), True
    )
    reference = ReferenceCaptions(training.items, lexicon)
    for variant in VARIANTS:
        alterer = balanced_alterer(variant, reference, rounds=3, captions=2500)
        for image, item in enumerate(items):
            for place, caption in enumerate(item.captions):
                for each in alterer.alter(caption, item.captions):
                    kind = "noun" if lexicon.find(each.old) is not None else "attribute"
                    pairs.append(("balanced", variant, first[image] + place, each, kind))
    caption = np.array([pair[2] for pair in pairs])
    image = measured.owner[caption]
    altered = measured.embed_texts([pair[3].caption for pair in pairs])
    difference = (measured.images[image] * (measured.texts[caption] - altered)).sum(1)
    of_word = np.array([table[pair[2]][pair[3].word_index] for pair in pairs], np.float64)
    fooled, select = difference <= 0, np.array([pair[0] for pair in pairs])
    kind, concept = (np.array([value(pair) for pair in pairs]) for value in (lambda p: p[4], lambda p: p[3].concept))
    rows = []

    def add(name: str, which: np.ndarray) -> None:
        rows.append({"pairs of": name} | auroc_with_interval(-of_word[which], fooled[which], image[which]))

    for each in (*SELECTIONS, "balanced"):
        add(f"{each} words", select == each)
    for each in ("noun", "attribute"):
        add(f"balanced words, {each}s", (select == "balanced") & (kind == each))
    # A random word's influence is not chosen, so that concepts compare.
    for each, count in Counter(concept[select == "random"]).most_common():
        if count >= FEWEST_PAIRS:
            add(f"random words, {each}", (select == "random") & (concept == each))
    return rows


def attention(measured: Measured) -> list[dict]:
    """Rows of AUROCs of the attention on the box against captions that prefer the mixed image."""
    share, relative, gain, fooled, image = [], [], [], [], []
    for seed in ATTENTION_SEEDS:
        plan = make_plan(measured.files.names, "patch", 0.9, seed, "paper")
        files = dict(zip(measured.files.names, measured.files.paths, strict=True))
        mixed = measured.embed(MixedImages(measured.files, plan))
        for pair in choose_pairs(measured.encoder, plan, files, len(files)):
            if pair.has_box:
                row = measured.files.names.index(pair.image)
                own = measured.texts[measured.owner == row]
                prefers = (own @ (mixed[row] - measured.images[row])) >= 0
                before, after = pair.shares
                for each in prefers:
                    fooled.append(bool(each))
                    image.append(row)
                    share.append(after)
                    relative.append(after / pair.area)
                    gain.append(after - before)
    fooled, image = np.array(fooled), np.array(image)
    scores = {"attention on the part mixed in": share, "the same, by its area": relative,
              "the same, less that place of the original": gain}  # fmt: skip
    rows = [{"score": name} | auroc_with_interval(np.array(each), fooled, image) for name, each in scores.items()]
    rows[0]["mean share of the fooled, of others"] = [
        float(np.mean(np.array(share)[kind])) for kind in (fooled, ~fooled)
    ]
    return rows


def draw(question: str, rows: list[dict], path: Path) -> None:
    pyplot = svg_pyplot("fooled")
    if question == "ratio":
        figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
        for axis, metric in zip(axes, ("R@1", "FR@1", "blind", "grounding"), strict=True):
            for method, colour in (("mix", "#3b6fb6"), ("patch", "#c4622d")):
                points = [row for row in rows if row["method"] == method]
                at, found = [row["ratio"] for row in points], [row[metric] for row in points]
                axis.plot(at, [each["value"] for each in found], "o-", color=colour, label=method, markersize=4)
                axis.fill_between(
                    at, [f["low"] for f in found], [f["high"] for f in found], color=colour, alpha=0.15, linewidth=0
                )
            axis.axvline(0.8, color="grey", linewidth=0.6, linestyle=":")
            axis.set_xlabel("share of the image's own")
            axis.set_title(f"{metric} (%)", fontsize=10)
        axes[0].axhline(rows[0]["R@1"]["value"], color="grey", linewidth=0.6)
        axes[0].legend(frameon=False)
    else:
        names = [row.get("pairs of") or row["score"] for row in rows]
        figure, axis = pyplot.subplots(figsize=(7, 0.8 + 0.28 * len(rows)), layout="constrained")
        for place, row in enumerate(rows):
            axis.plot([row["low"], row["high"]], [place, place], color="#3b6fb6", linewidth=1.5)
            axis.plot(row["value"], place, "o", color="#3b6fb6", markersize=5)
        axis.axvline(50, color="grey", linewidth=0.6)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("AUROC against being fooled (%), 50 is no relation")
        axes = [axis]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def cell(value) -> str:
    if isinstance(value, dict):
        return f"{value['value']:.1f} ({value['low']:.1f}-{value['high']:.1f})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    questions: dict[str, Callable] = {"ratio": ratio, "influence": influence, "attention": attention}
    parser.add_argument("question", choices=questions)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    enable_compilation_cache()
    rows = questions[arguments.question](Measured(arguments.model, arguments.data))
    for row in rows:
        print("| " + " | ".join(cell(value) for value in row.values()) + " |")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.figure:
        draw(arguments.question, rows, arguments.figure)


if __name__ == "__main__":
    main()
