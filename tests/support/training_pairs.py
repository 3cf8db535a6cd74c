"""Small captioned images that tests make for themselves; an image's grey and its captions say which one it is."""

import dataclasses
import json
from pathlib import Path

import numpy as np
from PIL import Image

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.training_input import TrainingInput, make_training_input
from rococo_jax.data.training_samples import DrawSample
from tests.support.tiny import WORDS, tiny_tokenizer

SIDE = 16
PREPROCESSING = Preprocessing(exact_size=(SIDE, SIDE), resample="nearest")


def write_images(folder: Path, count: int, start: int = 0) -> list[str]:
    """PNG files of one grey each, 2 * number + 1; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"image{number:03d}.png" for number in range(start, start + count)]
    for number, name in enumerate(names, start):
        Image.new("RGB", (SIDE, SIDE + number % 3), (2 * number + 1,) * 3).save(folder / name)
    return names


def captions_of(number: int, count: int = 5) -> list[str]:
    """Captions that no two images share."""
    return [f"{WORDS[number % len(WORDS)]} {number} dog {k}" for k in range(count)]


def write_pairs(folder: Path, count: int, captions: int = 5) -> tuple[str, str]:
    """An image folder and a captions file in the Karpathy form."""
    names = write_images(folder / "images", count)
    items = [{"image": name, "caption": captions_of(number, captions)} for number, name in enumerate(names)]
    (folder / "captions.json").write_text(json.dumps(items))
    return str(folder / "images"), str(folder / "captions.json")


def tiny_input(
    source, *, batch_size: int = 8, seed: int = 3, process_index: int = 0, process_count: int = 1, **choices
) -> TrainingInput:
    """A training input over tiny images and the tiny tokenizer; of several processes one has a run of rows."""
    own = batch_size // process_count
    choices.setdefault("rows", range(process_index * own, (process_index + 1) * own))
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
    """One array over all batches."""
    return np.concatenate([batch[name] for batch in batches])


def assert_same_batches(found: list[dict], wanted: list[dict]) -> None:
    """Every array of every batch is equal, in values and type."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
