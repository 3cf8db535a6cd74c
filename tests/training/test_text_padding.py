"""Texts are padded to the bucket of the longest text of the global batch, which changes nothing but roundings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh
from rococo_jax.training import inputs
from rococo_jax.training.config import check_config, read_config
from rococo_jax.training.inputs import workers_of
from rococo_jax.training.text_padding import (
    BUCKETS,
    CutTexts,
    agree_on_devices,
    bucket_of,
    cut_texts,
    longest_text,
    text_tokens,
)
from tests.support.input_world import make_world
from tests.support.paths import CHECKOUT
from tests.support.programs import QUICK
from tests.support.tiny import drawn_parameters, tiny_spec

ALTERED = {"losses__sc__weight": 1.0, "losses__sc__count": 2, "batch_size": 8}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def test_a_bucket_holds_its_texts_and_is_the_smallest_that_does():
    for most in (10, 24, 64, 77, 600):
        for tokens in range(1, most + 1):
            length = bucket_of(tokens, most)
            assert tokens <= length <= most and (length in BUCKETS or length == most)
            assert all(bucket >= length for bucket in BUCKETS if bucket >= tokens)


def test_batches_are_cut_to_the_longest_text_of_any_field_and_lose_no_token(world):
    cut, whole = (world.take(4, data__text_padding=how, **ALTERED) for how in ("batch", "whole"))
    for short, long in zip(cut, whole, strict=True):
        assert text_tokens(long) == 24 and text_tokens(short) == bucket_of(longest_text(long), 24) == 16
        for one, other in ((short.texts, long.texts), (short.fields["altered"], long.fields["altered"])):
            np.testing.assert_array_equal(one.ids, other.ids[..., :16])
            assert one.mask.sum() == other.mask.sum() and not other.mask[..., 16:].any()
        np.testing.assert_array_equal(short.images.pixels, long.images.pixels)
    # The altered captions are as long as the captions here; a longer one decides.
    batch = whole[0]
    batch.fields["altered"].mask[3, 1, :20] = True
    assert longest_text(batch) == 20 and text_tokens(cut_texts(batch, bucket_of(20, 24))) == 24


@pytest.mark.parametrize("attention", ["causal", "masked"])
def test_padding_changes_gradients_by_rounding_alone(world, attention):
    """In float32, sums over tokens run in another order: what lies beyond a text adds exact zeros to them.

    So no bit of a word's or a position's gradient that no text reaches may differ: these are exact zeros in both.
    """
    spec = tiny_spec(16, attention)
    parameters = {path: jnp.asarray(array) for path, array in drawn_parameters(spec).items()}
    long = world.take(1, data__text_padding="whole", **ALTERED)[0].texts
    weights = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)

    @partial(jax.jit, compiler_options=QUICK)
    def gradients(parameters, ids, mask):
        def total(parameters):
            return (build_model(spec, parameters, jnp.float32).text_embeddings(ids, mask) * weights).sum()

        return jax.grad(total)({**parameters})

    at = {length: gradients(parameters, long.ids[:, :length], long.mask[:, :length]) for length in (16, 24)}
    for path in (path for path in parameters if path.startswith("text")):
        short, whole = (np.asarray(at[length][path], np.float64) for length in (16, 24))
        # A few roundings of 6e-8 of each of 8 texts, relative to the largest element.
        assert np.abs(short - whole).max() <= 2e-6 * np.abs(whole).max(), path
    assert np.abs(whole).max() > 0
    for path, used in (("text.positions", longest_text_of(long.mask)), ("text.words", None)):
        short, whole = (np.asarray(at[length][path]) for length in (16, 24))
        unused = np.setdiff1d(
            np.arange(len(whole)), np.unique(long.ids[long.mask]) if used is None else np.arange(used)
        )
        assert len(unused) > 5 and not whole[unused].any() and not short[unused].any()


def longest_text_of(mask: np.ndarray) -> int:
    return int(mask.sum(1).max())


class TwoProcesses:
    """Two inputs that read halves of the same batches, and a maximum between them."""

    def __init__(self, world, lengths: list[list[int]]):
        batches = [world.take(len(lengths[0]), data__text_padding="whole", batch_size=8) for _ in range(2)]
        for half, own in zip(batches, lengths, strict=True):
            for batch, length in zip(half, own, strict=True):
                batch.texts.mask[:] = np.arange(24) < length
        self.asked, self.read = ([], []), ([], [])
        self.inputs = [CutTexts(_Listed(half, self.read[n]), 24, self._agree(n)) for n, half in enumerate(batches)]

    def _agree(self, number: int):
        def agree(longest: int):
            place = len(self.asked[number])
            self.asked[number].append(longest)
            return lambda: max(asked[place] for asked in self.asked)

        return agree


class _Listed:
    """Batches of a list; its state is how many were read."""

    def __init__(self, batches: list, read: list):
        self.batches, self.read, self.counts, self.close = batches, read, {"n": 0}, lambda: None

    def __next__(self):
        if len(self.read) == len(self.batches):
            raise InputError("input", "images", "a broken one", "another")
        self.read.append(len(self.read))
        self.counts = {"n": self.counts["n"] + 10}
        return self.batches[len(self.read) - 1]

    def get_state(self) -> dict:
        return {"next_step": len(self.read)}


def test_processes_agree_on_the_longest_text_of_all_and_ask_a_step_ahead(world):
    both = TwoProcesses(world, [[5, 17, 3, 9], [9, 4, 16, 20]])
    for step, length in enumerate((16, 24, 16, 24)):
        # In turns: each asks before any of them reads an answer, as devices do.
        for each in both.inputs:
            each._ahead = each._ahead or each._read()
        cut = [next(each) for each in both.inputs]
        assert [text_tokens(batch) for batch in cut] == [length, length]
        assert len(both.read[0]) == min(step + 2, 4)
        # What is told of the input is what it was before it read ahead.
        assert both.inputs[0].get_state() == {"next_step": step + 1} and both.inputs[0].counts["n"] == 10 * (step + 1)
    with pytest.raises(InputError, match="a broken one"):
        next(both.inputs[0])


def test_the_maximum_of_processes_is_taken_on_devices():
    mesh = make_mesh(jax.devices()[:4])
    assert [agree_on_devices(mesh)(longest)() for longest in (7, 19)] == [7, 19]


def test_workers_are_started_where_a_run_is_long(world, monkeypatch):
    monkeypatch.setattr(inputs, "usable_cores", lambda: 6)
    assert [workers_of("auto", images) for images in (2_000, 19_999, 20_000, 2 * 10**8)] == [0, 0, 6, 6]
    assert [workers_of(number, 2 * 10**8) for number in (0, 3)] == [0, 3]
    for value in (-1, "some", 1.5, True):
        with pytest.raises(InputError, match=r"config.data.workers: found .*; wanted 'auto', or 0 or more"):
            check_config(world.config_of(data__workers=value))
    assert read_config(CHECKOUT / "configs" / "coco_finetune.py", ["config.data.workers=3"]).data.workers == 3
