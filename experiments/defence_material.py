"""What the comparison of defences trains on and is judged by: features of frozen towers, computed once and kept."""

import dataclasses
import json
import time
from pathlib import Path

import jax
import numpy as np

from rococo_jax.benchmarks.rococo.annotations import read_annotation
from rococo_jax.benchmarks.rococo.mixed_galleries import MixedImages
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.images import FileImages
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.balance import balanced_alterer
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.replacement import CaptionAlterer, vocabulary_words
from rococo_jax.perturb.text.rewording import reword
from rococo_jax.perturb.text.word_exchange import ReferenceCaptions
from rococo_jax.runtime import cache_folder
from rococo_jax.training.config import default_config
from rococo_jax.training.init import trained_encoder
from rococo_jax.training.inputs import open_source
from rococo_jax.training.inputs.feature_pool import Features, make_features
from rococo_jax.training.inputs.loss_input import InputContext, Pool
from rococo_jax.training.join import Regularisation, fit_heads

# An alteration a caption of each, in every pool and for every arm.
TRAINING_VARIANTS = ("same_concept", "rand_voca")
MIXES = ("mix", "patch")
REPLACE_ITEMS, FLICKR_IMAGES = 4000, 500
# Of so many training images VC has resized and mixed copies; the others are trained on as they are.
MIXED_IMAGES = 1280
CLASSES = ("airplane", "bear", "bicycle", "bird", "boat", "bottle", "car", "cat", "chair", "clock", "dog", "elephant",
           "keyboard", "knife", "oven", "truck")  # fmt: skip
CUES_OF_A_SHAPE = 20


@dataclasses.dataclass(frozen=True)
class Altered:
    """Features of altered captions, and the caption that each belongs to."""

    features: np.ndarray
    caption: np.ndarray


@dataclasses.dataclass(frozen=True)
class Choices:
    """Features of right and wrong texts of items, and the image of each."""

    right: list[np.ndarray]
    wrong: np.ndarray
    image: np.ndarray


@dataclasses.dataclass(frozen=True)
class Tests:
    """What models are judged by: features before the heads. Images and captions are those that were not trained on.

    Attributes:
        owner: the image of each caption.
        altered: by variant.
        mixed: by method: features of each image with another mixed in, and which image that is.
        choices: SugarCrepe and SugarCrepe++ on these images.
        replaced: caption, hard positive and hard negative of REPLACE.
        flickr: images, captions, and the image of each caption.
        cues: images, their shape and texture as class numbers, and the prompts of all classes.
    """

    images: np.ndarray
    texts: np.ndarray
    owner: np.ndarray
    altered: dict[str, Altered]
    mixed: dict[str, tuple[np.ndarray, np.ndarray]]
    choices: dict[str, Choices]
    replaced: tuple[np.ndarray, ...] | None = None
    flickr: tuple[np.ndarray, ...] | None = None
    cues: tuple[np.ndarray, ...] | None = None


class Material:
    """Everything from one joined model; files under `folder`, and the towers' embedding cache.

    With `held`, so many training images are held out and judged by, and the heads are joined anew on the others.
    """

    def __init__(self, model: str, data: Path, folder: Path, held: int, with_mixed: bool):
        folder.mkdir(parents=True, exist_ok=True)
        self.data, self.folder, self.cache = data, folder, EmbeddingCache(cache_folder() / "embeddings")
        self.encoder, self.lexicon = load_model(model), shipped_lexicon()
        self.source = self._captioned("captions_train.json").items
        self.start = self.encoder
        every = self._training(with_mixed)
        if not held:
            self.training, self.tests = every, self._published_tests()
            return
        kept = np.ones(len(self.source), bool)
        kept[np.random.default_rng(0).permutation(len(kept))[:held]] = False
        self.training, self.tests = _held_out(every, kept)
        self.start = self._joined(kept)

    def texts(self, name: str, texts: list[str]) -> np.ndarray:
        """Features of captions, kept as `name`."""
        return self._kept(name, lambda: embed_texts(self.encoder, texts, self.cache, features=True))

    def images(self, name: str, images) -> np.ndarray:
        """Features of an image set or of files, kept as `name`."""
        return self._kept(name, lambda: embed_images(self.encoder, images, self.cache, features=True))

    def _kept(self, name: str, make) -> np.ndarray:
        path = self.folder / f"{name}.npy"
        if not path.exists():
            start = time.time()
            np.save(path, np.asarray(make(), np.float32))
            print(f"{name}: {time.time() - start:.0f} s", flush=True)
        return np.load(path)

    def _captioned(self, name: str):
        return read_captioned_images(str(self.data / "coco/images"), str(self.data / "coco" / name), False)

    def _training(self, with_mixed: bool) -> Features:
        captions = captions_of(self.source)
        first = np.cumsum([0, *(len(image.captions) for image in self.source)])
        images = self.images("train_images", self._captioned("captions_train.json").paths)
        texts = self.texts("train_texts", captions)
        pools = {name: self._pool(name) for name in ("ordinary", "balanced")}
        reworded = self._reworded(captions)
        flat = [made or own for made, own in zip(reworded, captions, strict=True)]
        valid = np.array([[made is not None] for made in reworded])
        pools["positive"] = Pool(self.texts("pool_positives", flat)[:, None], valid)
        resized = None
        if with_mixed:
            resized, mixed = images.copy(), np.zeros((len(images), 1, images.shape[1]), np.float32)
            resized[:MIXED_IMAGES], mixed[:MIXED_IMAGES] = self._resized_and_mixed()
            pools["mixed"] = Pool(mixed, (np.arange(len(images)) < MIXED_IMAGES)[:, None])
        return Features(images, texts, first, pools, resized, None, 0, {})

    def _reworded(self, captions: list[str]) -> list[str | None]:
        path = self.folder / "reworded.json"
        if not path.exists():
            made = [reword(caption, self.lexicon) for caption in captions]
            path.write_text(json.dumps([each[0].caption if each else None for each in made]))
        return json.loads(path.read_text())

    def _resized_and_mixed(self) -> tuple[np.ndarray, np.ndarray]:
        """Training images resized whole, and with another mixed in, as `rococo train` makes them for VC."""
        paths = [self.folder / f"train_{name}.npy" for name in ("resized", "mixed")]
        if not all(path.exists() for path in paths):
            first = self.folder / "first_captions.json"
            kept = [{"image": item.image, "caption": list(item.captions)} for item in self.source[:MIXED_IMAGES]]
            first.write_text(json.dumps(kept))
            config = default_config()
            config.data.images, config.data.captions = str(self.data / "coco/images"), str(first)
            config.data.cached_features, config.data.resize_prob = True, 0.5
            config.train.vision = config.train.text = "none"
            config.losses.vc.weight, config.losses.vc.views, config.data.feature_pool.mixed = 7.0, "resize", 1
            context = InputContext(config, self.encoder, open_source(config.data), self.folder)
            made = make_features(context, Augmentation(resize_prob=0.5, also_resized=True), self.cache)
            for path, features in zip(paths, (made.resized, made.pools["mixed"].features), strict=True):
                np.save(path, features)
        return tuple(map(np.load, paths))

    def _altered(self, kind: str, images: list[CaptionedImage]) -> list[list[str | None]]:
        """An altered caption of each caption by each training variant; None where a caption cannot be altered."""
        path = self.folder / f"altered_{kind}_{len(images)}.json"
        if not path.exists():
            if kind == "ordinary":
                common = {"select": "random", "vocabulary": vocabulary_words(self.encoder.tokenizer)}
                alterers = [CaptionAlterer(name, self.lexicon, **common) for name in TRAINING_VARIANTS]
            else:
                reference, fit = ReferenceCaptions(self.source, self.lexicon), {"rounds": 3, "captions": 2500}
                alterers = [balanced_alterer(name, reference, **fit) for name in TRAINING_VARIANTS]
            made = [
                [next((each.caption for each in alterer.alter(text, image.captions)), None) for alterer in alterers]
                for image in images
                for text in image.captions
            ]
            path.write_text(json.dumps(made))
        return json.loads(path.read_text())

    def _pool(self, kind: str) -> Pool:
        altered = self._altered(kind, self.source)
        flat = [text or own for row, own in zip(altered, captions_of(self.source), strict=True) for text in row]
        valid = np.array([[text is not None for text in row] for row in altered])
        return Pool(self.texts(f"pool_{kind}", flat).reshape(*valid.shape, -1), valid)

    def _published_tests(self) -> Tests:
        read = self._captioned("captions_test.json")
        items, names = read.items, tuple(Path(item.image).name for item in read.items)
        sets: dict[str, list[str | None]] = {}
        for variant in VARIANTS:
            published = read_annotation(self.data / f"rococo/annotations/{variant}.json").items
            of_image = {Path(item.image).name: item.altered for item in published}
            sets[variant] = [text for name in names for text in of_image[name]]
        for variant, texts in zip(TRAINING_VARIANTS, zip(*self._altered("balanced", items), strict=True), strict=True):
            sets[f"balanced {variant}"] = list(texts)
        altered = {}
        for name, texts in sets.items():
            caption = np.array([place for place, text in enumerate(texts) if text is not None])
            features = self.texts(f"test_{name.replace(' ', '_')}", [texts[place] for place in caption])
            altered[name] = Altered(features, caption)
        files, mixed = FileImages(names, tuple(read.paths)), {}
        for method in MIXES:
            plan = make_plan(names, method, 0.9, 1, "paper")
            partner = np.empty(len(names), int)
            partner[plan.first] = plan.partner
            mixed[method] = self.images(f"test_{method}", MixedImages(files, plan)), partner
        flickr = read_captioned_images(str(self.data / "flickr8k/images"), str(self.data / "flickr8k/captions.json"))
        return Tests(
            self.images("test_images", read.paths),
            self.texts("test_texts", captions_of(items)),
            image_of(items),
            altered,
            mixed,
            {name: self._choices(name, names) for name in ("sugar_crepe", "sugarcrepe_pp")},
            self._replaced(),
            (
                self.images("flickr_images", flickr.paths[:FLICKR_IMAGES]),
                self.texts("flickr_texts", captions_of(flickr.items[:FLICKR_IMAGES])),
                image_of(flickr.items[:FLICKR_IMAGES]),
            ),
            self._cues(),
        )

    def _choices(self, name: str, images: tuple[str, ...]) -> Choices:
        """Items on images that were not trained on; protocol: no others count for a model trained on these captions."""
        place = {image.rpartition("_")[2]: number for number, image in enumerate(images)}
        right, wrong, image = [], [], []
        for path in sorted((self.data / name).glob("*.json")):
            items = json.loads(path.read_text())
            for item in items.values() if isinstance(items, dict) else items:
                if item["filename"] in place:
                    right.append([item[key] for key in ("caption", "caption2") if key in item])
                    wrong.append(item["negative_caption"])
                    image.append(place[item["filename"]])
        of_right = [self.texts(f"{name}_right_{n}", list(texts)) for n, texts in enumerate(zip(*right, strict=True))]
        return Choices(of_right, self.texts(f"{name}_wrong", wrong), np.array(image))

    def _replaced(self) -> tuple[np.ndarray, ...]:
        """Caption, hard positive and hard negative of so many items of relations and of attributes, drawn once."""
        folder, triples = self.data / "hard_positives", []
        for part in ("relations", "attributes"):
            name = f"vl_checklist_{part}.json"
            originals, swapped = (json.loads((folder / each / name).read_text()) for each in ("data", "swapped_data"))
            for place in np.random.default_rng(0).permutation(len(originals))[:REPLACE_ITEMS]:
                one, other = originals[place], swapped[place]
                triples.append((one["true_caption"], other["true_caption"], one["false_caption"]))
        return tuple(self.texts(f"replace_{n}", list(texts)) for n, texts in enumerate(zip(*triples, strict=True)))

    def _cues(self) -> tuple[np.ndarray, ...]:
        """Twenty cue-conflict images of each shape whose texture is another class, and a prompt of each class."""
        chosen, shape, texture = [], [], []
        for number, name in enumerate(CLASSES):
            of_shape = sorted((self.data / "cue_conflict/cue_conflict" / name).glob("*.jpg"))
            textures = ["".join(c for c in path.stem.split("-")[1] if c.isalpha()) for path in of_shape]
            differ = [place for place, each in enumerate(textures) if each != name]
            for place in np.random.default_rng(number).permutation(differ)[:CUES_OF_A_SHAPE]:
                chosen.append(of_shape[place])
                shape.append(number)
                texture.append(CLASSES.index(textures[place]))
        prompts = self.texts("cue_prompts", [f"a photo of {'an' if c[0] in 'aeo' else 'a'} {c}" for c in CLASSES])
        return self.images("cue_images", chosen), np.array(shape), np.array(texture), prompts

    def _joined(self, kept: np.ndarray) -> Encoder:
        """The heads joined anew without the held-out images, with the model's own regularisation."""
        fit, training = self.encoder.provenance["joined"]["fit"], self.training
        regularisation = Regularisation(fit["image_ridge"], fit["text_ridge"], fit["power"])
        owner = np.repeat(np.arange(len(training.images)), np.diff(training.first))
        heads = fit_heads(training.images, training.texts, owner, fit["dim"], regularisation)
        parameters = dict(parameters_of(self.encoder.model))
        for side, kernel, bias in (
            ("vision", heads.image_kernel, heads.image_bias),
            ("text", heads.text_kernel, heads.text_bias),
        ):
            for name, value in (("kernel", kernel), ("bias", bias)):
                path = f"{side}_head.{name}"
                assert parameters[path].shape == value.shape
                parameters[path] = jax.numpy.asarray(value, jax.numpy.float32)
        return trained_encoder(self.encoder, parameters, {})


def captions_of(images: list[CaptionedImage]) -> list[str]:
    return [caption for image in images for caption in image.captions]


def image_of(images: list[CaptionedImage]) -> np.ndarray:
    return np.repeat(np.arange(len(images)), [len(image.captions) for image in images])


def _held_out(every: Features, kept: np.ndarray) -> tuple[Features, Tests]:
    """Training on the images kept, tests on the others; these have no mixed images."""
    counts = np.diff(every.first)
    of_text = np.repeat(kept, counts)

    def part(pool: Pool) -> Pool:
        rows = kept if len(pool.features) == len(kept) else of_text
        return Pool(pool.features[rows], pool.valid[rows])

    pools = {name: part(pool) for name, pool in every.pools.items()}
    first = np.cumsum([0, *counts[kept]])
    resized = None if every.resized is None else every.resized[kept]
    training = Features(every.images[kept], every.texts[of_text], first, pools, resized, None, 0, {})
    altered = {}
    for name in ("ordinary", "balanced"):
        for number, variant in enumerate(TRAINING_VARIANTS):
            pool = every.pools[name]
            valid = pool.valid[~of_text, number]
            altered[f"{name} {variant}"] = Altered(pool.features[~of_text, number][valid], np.flatnonzero(valid))
    owner = np.repeat(np.arange(int((~kept).sum())), counts[~kept])
    return training, Tests(every.images[~kept], every.texts[~of_text], owner, altered, {}, {})
