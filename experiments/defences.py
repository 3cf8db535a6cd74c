"""Compare defences against altered captions at equal budget: heads on the features of two frozen towers.

    python experiments/defences.py run --model models/joined --data DATA --out OUT [--seeds 0,1,2] [--held 400]
    python experiments/defences.py table --out OUT [--figure docs/figures/defences.svg]

DATA is a folder in the documented layout. Towers run once, captions are altered once, and every finished run is kept,
so that the same command goes on. With `--held N` nothing but `captions_train.json` is read: N of its images are held
out, the heads are joined anew on the others, and the held-out images are what is evaluated; settings are chosen so.

Grounding is computed here in NumPy, over all wrong images (`grounding_figures`). Intervals resample images and keep all
seeds of an image together; so does the difference from the first arm.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

from rococo_jax.benchmarks.rococo.annotations import read_annotation
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.captions import CaptionedImage, read_captioned_images
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.balance import balanced_alterer
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.replacement import CaptionAlterer, vocabulary_words
from rococo_jax.perturb.text.rewording import reword
from rococo_jax.perturb.text.word_exchange import ReferenceCaptions
from rococo_jax.runtime import cache_folder, enable_compilation_cache, make_mesh
from rococo_jax.training.batch import place_batch
from rococo_jax.training.config import default_config
from rococo_jax.training.freezing import split_parameters, with_teacher
from rococo_jax.training.init import trained_encoder, with_residual_heads
from rococo_jax.training.inputs.feature_pool import FeatureInput, Features
from rococo_jax.training.inputs.loss_input import Making, Pool
from rococo_jax.training.optimizer import make_optimizer
from rococo_jax.training.state import make_state, place_parameters
from rococo_jax.training.step import make_step, reads_teacher

PER_CAPTION, DRAWS = 2, 2000
WEIGHTS = (0.25, 0.5, 0.75)
# Arm -> (pool of altered captions, settings). Weights of published terms are their papers'.
ARMS: dict[str, tuple[str, dict]] = {
    "plain": ("ordinary", {}),
    "SC": ("ordinary", {"losses.sc.weight": 1.5}),
    "SC, balanced": ("balanced", {"losses.sc.weight": 1.5}),
    "SC + blind": ("ordinary", {"losses.sc.weight": 1.5, "losses.blind.weight": 1.0}),
    "grounding": ("ordinary", {"losses.grounding.weight": 1.0}),
    "grounding, balanced": ("balanced", {"losses.grounding.weight": 1.0}),
    "SC + grounding, balanced": ("balanced", {"losses.sc.weight": 1.5, "losses.grounding.weight": 1.0}),
    "NegCLIP": ("ordinary", {"losses.negclip.weight": 1.0}),
    "CE-CLIP": ("ordinary", {"losses.negclip.weight": 1.0, "losses.ce_clip.weight": 1.0}),
    "focal (FSC-CLIP)": ("ordinary", {"losses.focal.weight": 0.5}),
    "hard positives": ("balanced", {"losses.hard_positives.weight": 1.0}),
    "SC + distillation": ("ordinary", {"losses.sc.weight": 1.5, "losses.distillation.weight": 1.0}),
    "SC + pull to start": ("ordinary", {"losses.sc.weight": 1.5, "optimizer.pull_to_start": 20.0}),
    "LABCLIP": ("balanced", {"losses.sc.weight": 1.5, "train.heads": "text", "init.residual_head_width": 0}),
}


def config_of(settings: dict, seed: int, steps: int):
    """The config of an arm; the budget is the same for all."""
    config = default_config()
    config.seed, config.steps, config.batch_size = seed, steps, 256
    config.init.residual_head_width = 512
    config.train.vision = config.train.text = "none"
    config.data.cached_features, config.data.feature_noise = True, 0.5
    config.data.feature_pool.captions = PER_CAPTION
    config.optimizer.learning_rate = 2e-4
    config.losses.sc.count, config.losses.sc.scope = PER_CAPTION, "global"
    for key, value in settings.items():
        *path, last = key.split(".")
        part = config
        for name in path:
            part = part[name]
        part[last] = value
    return config


class Material:
    """Features of images, captions and altered captions, made once and kept under `folder`."""

    def __init__(self, model: str, data: Path, folder: Path, held: int, limit: int = 0):
        self.folder, self.cache = folder, EmbeddingCache(cache_folder() / "embeddings")
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder, self.lexicon = load_model(model), shipped_lexicon()
        coco = data / "coco"
        every = read_captioned_images(str(coco / "images"), str(coco / "captions_train.json"), False)
        self.source = every.items[: limit or None]
        images = self._kept("train_images", lambda: embed_images(self.encoder, every.paths, self.cache, features=True))
        images = images[: limit or None]
        texts = self.texts("train_texts", captions_of(self.source))
        self.pools = {name: self._pool(name) for name in ("ordinary", "balanced")} | {"positive": self._positives()}
        kept = np.ones(len(images), bool)
        if held:
            kept[np.random.default_rng(0).permutation(len(images))[:held]] = False
        of_text = kept[image_of(self.source)]
        self.train = [item for item, is_kept in zip(self.source, kept, strict=True) if is_kept]
        self.train_images, self.train_texts = images[kept], texts[of_text]
        if held:
            self.test = [item for item, is_kept in zip(self.source, kept, strict=True) if not is_kept]
            self.test_images, self.test_texts = images[~kept], texts[~of_text]
            self.evaluated = {}
            for name in ("ordinary", "balanced"):
                pool = self.pools[name]
                for number in range(PER_CAPTION):
                    valid = pool.valid[~of_text, number]
                    altered = pool.features[~of_text, number][valid]
                    self.evaluated[f"{name} {number}"] = altered, np.flatnonzero(valid)
            self.pools = {name: Pool(each.features[of_text], each.valid[of_text]) for name, each in self.pools.items()}
            self.encoder = self._joined()
        else:
            test = read_captioned_images(str(coco / "images"), str(coco / "captions_test.json"), False)
            self.test = test.items
            make = lambda: embed_images(self.encoder, test.paths, self.cache, features=True)  # noqa: E731
            self.test_images = self._kept("test_images", make)
            self.test_texts = self.texts("test_texts", captions_of(self.test))
            self.evaluated = self._evaluated(data)

    def texts(self, name: str, texts: list[str]) -> np.ndarray:
        return self._kept(name, lambda: embed_texts(self.encoder, texts, self.cache, features=True))

    def _kept(self, name: str, make) -> np.ndarray:
        path = self.folder / f"{name}.npy"
        if not path.exists():
            start = time.process_time()
            np.save(path, np.asarray(make(), np.float32))
            print(f"{name}: {time.process_time() - start:.0f} s", flush=True)
        return np.load(path)

    def alterers(self, kind: str) -> list:
        if kind == "ordinary":
            words = vocabulary_words(self.encoder.tokenizer)
            common = {"select": "random", "vocabulary": words}
            return [CaptionAlterer(name, self.lexicon, **common) for name in ("same_concept", "rand_voca")]
        reference = ReferenceCaptions(self.source, self.lexicon)
        fit = {"rounds": 3, "captions": 2500}
        return [balanced_alterer(name, reference, "replace", **fit) for name in ("same_concept", "rand_voca")]

    def altered(self, kind: str, images: list[CaptionedImage]) -> list[list[str | None]]:
        """`PER_CAPTION` altered captions of every caption, the alterers in turn."""
        path = self.folder / f"altered_{kind}_{len(images)}.json"
        if not path.exists():
            alterers = self.alterers(kind)
            found = [
                [next((each.caption for each in alterer.alter(text, image.captions)), None) for alterer in alterers]
                for image in images
                for text in image.captions
            ]
            path.write_text(json.dumps(found))
        return json.loads(path.read_text())

    def _pool(self, kind: str) -> Pool:
        altered, captions = self.altered(kind, self.source), captions_of(self.source)
        flat = [text or own for row, own in zip(altered, captions, strict=True) for text in row]
        features = self.texts(f"pool_{kind}", flat)
        valid = np.array([[text is not None for text in row] for row in altered])
        return Pool(features.reshape(*valid.shape, -1), valid)

    def _positives(self) -> Pool:
        captions = captions_of(self.source)
        found = [reword(text, self.lexicon) for text in captions]
        texts = [each[0].caption if each else own for each, own in zip(found, captions, strict=True)]
        features = self.texts("pool_positives", texts)
        return Pool(features[:, None], np.array([[bool(each)] for each in found]))

    def _evaluated(self, data: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By variant: features of altered captions, and the caption that each belongs to."""
        sets: dict[str, list[str | None]] = {}
        for variant in VARIANTS:
            items = read_annotation(data / f"rococo/annotations/{variant}.json").items
            found = {Path(item.image).name: item for item in items}
            sets[variant] = [text for image in self.test for text in found[Path(image.image).name].altered]
        for number, texts in enumerate(zip(*self.altered("balanced", self.test), strict=True)):
            sets[f"balanced {number}"] = list(texts)
        made = {}
        for name, texts in sets.items():
            kept = np.array([place for place, text in enumerate(texts) if text is not None])
            made[name] = self.texts(f"test_{name}", [texts[place] for place in kept]), kept
        return made

    def _joined(self) -> Encoder:
        """The heads of the model joined anew without the held-out images, with the same regularisation."""
        from rococo_jax.training.join import Regularisation, fit_heads

        fit = self.encoder.provenance["joined"]["fit"]
        regularisation = Regularisation(fit["image_ridge"], fit["text_ridge"], fit["power"])
        heads = fit_heads(self.train_images, self.train_texts, image_of(self.train), fit["dim"], regularisation)
        parameters = dict(parameters_of(self.encoder.model))
        for path, value in (
            ("vision_head.kernel", heads.image_kernel),
            ("vision_head.bias", heads.image_bias),
            ("text_head.kernel", heads.text_kernel),
            ("text_head.bias", heads.text_bias),
        ):
            assert parameters[path].shape == value.shape
            parameters[path] = jax.numpy.asarray(value, jax.numpy.float32)
        return trained_encoder(self.encoder, parameters, {})


def captions_of(images: list[CaptionedImage]) -> list[str]:
    return [caption for image in images for caption in image.captions]


def image_of(images: list[CaptionedImage]) -> np.ndarray:
    return np.repeat(np.arange(len(images)), [len(image.captions) for image in images])


def train_arm(material: Material, arm: str, seed: int, steps: int) -> Encoder:
    """The encoder that an arm trains."""
    kind, settings = ARMS[arm]
    config = config_of(settings, seed, steps)
    width = config.init.residual_head_width
    encoder = with_residual_heads(material.encoder, width, seed) if width else material.encoder
    first = np.cumsum([0, *(len(image.captions) for image in material.train)])
    pools = {"altered": material.pools[kind], "negative": material.pools[kind]}
    pools["positive"] = material.pools["positive"]
    features = Features(material.train_images, material.train_texts, first, pools, None, None, 0, {})
    mesh = make_mesh()
    batches = FeatureInput(features, Making(config, encoder, None, material.folder))
    trained, frozen = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    optimizer = make_optimizer(config.optimizer, config.steps, encoder.spec, trained)
    step = make_step(config, encoder.spec, encoder.preprocessing, optimizer, mesh)
    state = make_state(trained, optimizer, mesh, averaged=False)
    frozen = place_parameters(frozen, mesh)
    if reads_teacher(config):
        frozen = with_teacher(frozen, jax.tree.map(jax.numpy.copy, place_parameters(trained, mesh)))
    for _ in range(steps):
        state, metrics = step(state, frozen, place_batch(next(batches), mesh))
    assert np.isfinite(float(metrics["loss"]))
    heads = {path: np.asarray(array) for path, array in state.parameters.items()}
    return trained_encoder(encoder, {**parameters_of(encoder.model), **heads}, {})


def between(plain: Encoder, other: Encoder, weight: float) -> Encoder:
    ends = parameters_of(plain.model), parameters_of(other.model)
    return trained_encoder(
        plain, {path: (1 - weight) * array + weight * ends[1][path] for path, array in ends[0].items()}, {}
    )


def evaluate(material: Material, encoder: Encoder) -> dict[str, np.ndarray]:
    """Per image: the mean over its pairs or captions of each figure, in per cent; NaN where it has none."""
    images = np.asarray(encoder.project_image_features(material.test_images), np.float64)
    texts = np.asarray(encoder.project_text_features(material.test_texts), np.float64)
    owner = image_of(material.test)
    similarities = images @ texts.T
    count = len(images)
    own = owner[None] == np.arange(count)[:, None]
    best_own = np.where(own, similarities, -np.inf).max(1)
    best_other = np.where(own, -np.inf, similarities).max(1)
    figures = {"i2t R@1": 100.0 * (best_own > best_other)}
    right = similarities[owner, np.arange(len(owner))]
    first = (np.where(own, -np.inf, similarities).max(0) < right).astype(np.float64)
    figures["t2i R@1"] = 100 * per_image(first, owner, count)
    for name, (features, place) in material.evaluated.items():
        altered = np.asarray(encoder.project_text_features(features), np.float64)
        best_altered = (images @ altered.T).max(1)
        figures[f"{name}: R@1"] = 100.0 * ((best_own > best_other) & (best_own > best_altered))
        figures[f"{name}: FR@1"] = 100.0 * (best_altered >= np.maximum(best_own, best_other))
        pairs = grounding_figures(similarities[:, place] - images @ altered.T, owner[place])
        for metric, values in pairs.items():
            figures[f"{name}: {metric}"] = 100 * per_image(values, owner[place], count)
    return figures


def grounding_figures(differences: np.ndarray, owner: np.ndarray) -> dict[str, np.ndarray]:
    """Preference, blind, grounding and difference R@1 of every pair, from 0 to 1; ties count one half.

    Args:
        differences: (images, pairs), s(I_j, T_k) - s(I_j, T~_k).
        owner: the image of each pair.
    """
    pairs = np.arange(len(owner))
    own, wrong = differences[owner, pairs], np.ones(differences.shape, bool)
    wrong[owner, pairs] = False
    others = wrong.sum(0)
    beaten = (np.sign(own[None] - differences) + 1) / 2
    return {
        "preference": (np.sign(own) + 1) / 2,
        "blind": np.where(wrong, (np.sign(differences) + 1) / 2, 0).sum(0) / others,
        "grounding": np.where(wrong, beaten, 0).sum(0) / others,
        "difference R@1": (np.where(wrong, beaten, 1).min(0) == 1).astype(np.float64),
    }


def per_image(values: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    pairs = np.bincount(owner, minlength=count)
    with np.errstate(invalid="ignore"):
        return np.bincount(owner, values, minlength=count) / pairs


def run(arguments: argparse.Namespace) -> None:
    enable_compilation_cache()
    material = Material(arguments.model, arguments.data, arguments.out / "features", arguments.held, arguments.limit)
    (arguments.out / "runs").mkdir(exist_ok=True)
    save(arguments.out / "runs" / "joined_0.npz", lambda: evaluate(material, material.encoder))
    for seed in map(int, arguments.seeds.split(",")):
        plain = None
        for arm in arguments.arms.split(";") if arguments.arms else ARMS:
            path = arguments.out / "runs" / f"{arm}_{seed}.npz"
            if path.exists() and arm != "plain":
                continue
            start = time.process_time()
            encoder = train_arm(material, arm, seed, arguments.steps)
            plain = encoder if arm == "plain" else plain
            save(path, lambda encoder=encoder: evaluate(material, encoder))
            if arguments.interpolate and arm != "plain" and encoder.spec == plain.spec:
                for weight in WEIGHTS:
                    name = f"{arm} @{weight}_{seed}.npz"
                    save(path.parent / name, lambda e=encoder, w=weight, p=plain: evaluate(material, between(p, e, w)))
            print(f"{arm}, seed {seed}: {time.process_time() - start:.0f} s", flush=True)


def save(path: Path, make) -> None:
    if not path.exists():
        np.savez(path, **make())


def read_runs(out: Path) -> dict[str, dict[str, np.ndarray]]:
    """By arm and figure (seeds, images)."""
    found: dict[str, list[dict]] = {}
    for path in sorted((out / "runs").glob("*.npz")):
        found.setdefault(path.stem.rpartition("_")[0], []).append(dict(np.load(path)))
    runs = {arm: {key: np.stack([each[key] for each in seeds]) for key in seeds[0]} for arm, seeds in found.items()}
    for figures in runs.values():
        for group in ("published", "balanced", "ordinary"):
            names = VARIANTS if group == "published" else (f"{group} 0", f"{group} 1")
            for metric in ("R@1", "FR@1", "preference", "blind", "grounding", "difference R@1"):
                each = [figures[f"{name}: {metric}"] for name in names if f"{name}: {metric}" in figures]
                if each:
                    figures[f"{group} {metric}"] = np.nanmean(each, axis=0)
    return runs


def summary(values: np.ndarray, draws: np.ndarray) -> tuple[float, float, float]:
    """The mean over seeds and images, and its 95 % interval over images."""
    of_image = values.mean(0)
    kept = ~np.isnan(of_image)
    weights = draws[:, kept]
    means = weights @ of_image[kept] / weights.sum(1)
    return float(of_image[kept].mean()), *np.percentile(means, [2.5, 97.5])


def table(arguments: argparse.Namespace) -> None:
    runs = read_runs(arguments.out)
    count = len(runs["plain"]["i2t R@1"][0])
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)
    columns = ["i2t R@1", "t2i R@1"]
    for group in ("published", "ordinary", "balanced"):
        names = (
            ("R@1", "FR@1", "blind", "grounding", "difference R@1")
            if group != "balanced"
            else ("FR@1", "blind", "grounding")
        )
        columns += [f"{group} {name}" for name in names if f"{group} {name}" in runs["plain"]]
    print("| arm | seeds | " + " | ".join(columns) + " |")
    print("| --- | ---: | " + " | ".join("---:" for _ in columns) + " |")
    entries = {}
    order = ["joined", *(arm for arm in ARMS if arm in runs), *sorted(arm for arm in runs if "@" in arm)]
    for arm in order:
        cells, entries[arm] = [], {}
        for column in columns:
            mean, low, high = summary(runs[arm][column], draws)
            entry = {"mean": mean, "interval": [low, high]}
            cell = f"{mean:.1f}"
            if arm != "plain":
                change, low, high = summary(
                    runs[arm][column].mean(0)[None] - runs["plain"][column].mean(0)[None], draws
                )
                entry |= {"against plain": change, "interval of it": [low, high]}
                cell += f" ({change:+.1f}, {low:+.1f} to {high:+.1f})"
            else:
                cell += f" ({low:.1f} to {high:.1f})"
            entries[arm][column] = entry
            cells.append(cell)
        print(f"| {arm} | {len(runs[arm]['i2t R@1'])} | " + " | ".join(cells) + " |")
    (arguments.out / "table.json").write_text(json.dumps(entries, indent=1) + "\n")
    if arguments.figure:
        draw(entries, "published" if "published blind" in columns else "ordinary", arguments.figure)


def draw(entries: dict, group: str, path: Path) -> None:
    """The frontier: clean R@1 against grounding and against FR@1, with curves from plain to each arm."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "defences"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    for axis, column in zip(axes, (f"{group} grounding", f"{group} FR@1", f"{group} blind"), strict=True):
        for number, arm in enumerate(arm for arm in entries if "@" not in arm):
            points = ["plain", *(f"{arm} @{weight}" for weight in WEIGHTS), arm]
            points = [entries[point] for point in points if point in entries]
            clean = [(point["i2t R@1"]["mean"] + point["t2i R@1"]["mean"]) / 2 for point in points]
            values = [point[column]["mean"] for point in points]
            colour = pyplot.get_cmap("tab20")(number)
            if len(points) > 2:
                axis.plot(values, clean, color=colour, linewidth=0.8, alpha=0.7)
            axis.scatter(values[-1:], clean[-1:], color=colour, s=28, label=arm, zorder=3)
        axis.set_xlabel(f"{column} (%)")
        axis.set_ylabel("clean R@1, mean of both ways (%)")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--model", required=True, help="a joined model")
    runner.add_argument("--data", type=Path, required=True)
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--seeds", default="0,1,2")
    runner.add_argument("--steps", type=int, default=200)
    runner.add_argument("--held", type=int, default=0, help="training images to hold out and evaluate on instead")
    runner.add_argument("--limit", type=int, default=0, help="use the first so many training images alone")
    runner.add_argument("--arms", default="", help="names, separated by semicolons (default: all)")
    runner.add_argument("--interpolate", action="store_true", help="also models between plain and each arm")
    shown = commands.add_parser("table")
    shown.add_argument("--out", type=Path, required=True)
    shown.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    {"run": run, "table": table}[arguments.command](arguments)


if __name__ == "__main__":
    main()
