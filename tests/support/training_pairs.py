"""Small captioned images that tests make for themselves; an image's grey and its captions say which one it is."""

import dataclasses
import io
from pathlib import Path

import numpy as np
from PIL import Image

from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.training_input import TrainingInput, make_training_input
from rococo_jax.data.training_samples import DrawSample
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.replacement import AlterCaptions, CaptionAlterer
from tests.support.tiny import WORDS, tiny_tokenizer
from tests.support.world import write_world

SIDE = 16
PREPROCESSING = Preprocessing(exact_size=(SIDE, SIDE), resample="nearest")


def grey_of(number: int, _: object = None) -> Image.Image:
    """A picture of one grey, 2 * number + 1."""
    return Image.new("RGB", (SIDE, SIDE + number % 3), (2 * number + 1,) * 3)


def png(number: int) -> bytes:
    """The file of `grey_of`."""
    file = io.BytesIO()
    grey_of(number).save(file, "PNG")
    return file.getvalue()


def captions_of(number: int, count: int = 5) -> list[str]:
    """Return captions that no two images share."""
    return [f"{WORDS[number % len(WORDS)]} {number} dog {k}" for k in range(count)]


def write_pairs(folder: Path, count: int, captions: int = 5) -> tuple[str, str]:
    """An image folder and a captions file in the Karpathy form."""
    texts = [captions_of(number, captions) for number in range(count)]
    write_world(folder, texts, name="image{:03}.png", picture=grey_of)
    return str(folder / "images"), str(folder / "captions.json")


def all_of(source: PairSource) -> list[PairSample]:
    """Every sample."""
    return [source[index] for index in range(len(source))]


def texts_to_alter() -> AlterCaptions:
    """A transform that adds two altered captions to a sample."""
    return AlterCaptions([CaptionAlterer("same_concept", shipped_lexicon(), select="random")], count=2)


def tiny_input(
    source, *, batch_size: int = 8, seed: int = 3, process_index: int = 0, process_count: int = 1, **choices
) -> TrainingInput:
    """A training input over tiny images and the tiny tokenizer; of several processes one has a run of rows."""
    batch_share = batch_size // process_count
    choices.setdefault("rows", range(process_index * batch_share, (process_index + 1) * batch_share))
    order = choices.pop("order", None) or SampleOrder(len(source), batch_size, seed)
    names = {field.name for field in dataclasses.fields(DrawSample)} & choices.keys()
    draw = {"preprocessing": PREPROCESSING, **{name: choices.pop(name) for name in names}}
    choices = {"tokenizer": tiny_tokenizer(), "prefetch": 0, **choices}
    return make_training_input(DrawSample(source, order, **draw), **choices)


def take(training_input: TrainingInput, count: int) -> list[dict[str, np.ndarray]]:
    """The next batches; the input is closed."""
    with training_input:
        return [next(training_input) for _ in range(count)]


def column(batches: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    """Join the batches into one array."""
    return np.concatenate([batch[name] for batch in batches])


def assert_same_batches(found: list[dict], wanted: list[dict]) -> None:
    """Every array of every batch is equal, in values and type."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
