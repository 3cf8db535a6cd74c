"""A whole training step against an independent one in torch, and every config key of a step told from another value.

The package computes in float32, the oracle in float64. Errors are relative to the largest element of an array: a
gradient of two blocks, heads and a softmax over logits of 15 has some hundred roundings of 6e-8.
"""

import dataclasses
import re

import numpy as np
import pytest

from rococo_jax.training.config import default_config, flat
from rococo_jax.training.step import lower_step
from tests.support.step_cases import (
    CASES,
    LOW,
    PREPROCESSING,
    SIDE,
    STEP_KEYS,
    TOKENS,
    Case,
    differences,
    expect,
    run,
    spec_of,
)
from tests.support.tiny_runs import mesh_of

TOLERANCE = 1e-5
# Adam's division amplifies rounding of float32. The largest error of three steps against float64, that of the patches'
# kernel, was 0.7e-5 with AVX, 0.95e-5 with AVX2 in one thread and 1.003e-5 in two, on one processor.
TOLERANCE_OF_PARAMETERS = 2e-5
DEFAULTS = flat(default_config())


def too_large(errors: dict[str, float]) -> dict[str, float]:
    """Return the errors above the limit of their kind, by step, kind and path."""
    limits = {"parameters": TOLERANCE_OF_PARAMETERS, "average": TOLERANCE_OF_PARAMETERS}
    return {what: error for what, error in errors.items() if not error <= limits.get(what.split()[1], TOLERANCE)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("every", "parts"))) for name in CASES]
)
def test_three_training_steps_match_torch(name):
    case = CASES[name]
    errors = differences(run(case), expect(case))
    assert len(errors) > 30 and not too_large(errors)


@pytest.mark.thorough
@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 4), (4, 2), (1, 8), (2, 4)])
def test_steps_of_every_loss_match_torch_on_any_devices_and_in_micro_batches(devices, micro_batches):
    case = CASES["every loss and optimizer key"]
    settings = (*case.settings, ("micro_batches", micro_batches))
    errors = differences(run(dataclasses.replace(case, settings=settings, devices=devices)), expect(case))
    assert not too_large(errors)


@pytest.mark.thorough
def test_a_bfloat16_step_is_closer_to_the_bfloat16_reference_than_to_the_float32_one():
    found = {1: run(LOW)[1]}
    low, high = (differences(found, expect(LOW, {"dtype": dtype}, 1)) for dtype in ("bfloat16", "float32"))
    assert max(low.values()) < 0.1 and low["1 loss"] < 0.02
    assert np.mean(list(low.values())) < np.mean(list(high.values()))


def told_apart(case: Case, key: str, value: object, last: int) -> bool:
    """Return whether the first `last` steps under `case` differ from the oracle's with another value of `key`."""
    found = {number: state for number, state in run(case).items() if number <= last}
    try:
        errors = differences(found, expect(case, {key: value}, last))
    except KeyError:  # the value asks for what the case lacks
        return False
    except AssertionError:  # other parts of the loss, or other parameters trained
        return True
    return max(errors.values()) > 20 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("key", STEP_KEYS)
def test_each_value_of_a_key_gives_a_different_result_that_matches_torch(key):
    values = {name: case.leaves()[key] for name, case in CASES.items()}
    assert len({*values.values(), LOW.leaves()[key]}) > 1, f"no case gives {key} a second value"
    known = (DEFAULTS[key], *values.values(), LOW.leaves()[key])
    others = dict.fromkeys((CASES[name], other) for name, value in values.items() for other in known if other != value)
    # The first case is the cheapest. A value that asks for what a case lacks (a bias) is of no use to it.
    assert any(
        told_apart(case, key, value, last)
        for case, value in others if value != "sigmoid" or case.bias for last in (1, 3)
    )  # fmt: skip


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    """Return steps of towers with 4 patches of an image and a class token, under the defaults and other keys."""

    def program(**settings: object) -> str:
        case = Case((("batch_size", 8), *settings.items()))
        return lower_step(case.config(), spec_of(case), PREPROCESSING, mesh_of(1), TOKENS).as_text()

    return {
        "plain": program(),
        "parts": program(micro_batches=4, dtype="bfloat16"),
        "remat": program(remat="full"),
        "unrolled": program(unroll=True),
        "frozen": program(train__vision="none", train__text="none"),
        "dropped": program(patch_dropout=0.5),
        "locked": program(train__vision="none", data__cached_features=True),
    }


@pytest.mark.slow
def test_keys_that_change_how_a_step_is_computed_change_its_program(programs):
    # All micro-batches, those that are embedded again, and the dtype.
    for sign in ("tensor<4x2x", f"tensor<3x2x{SIDE}x{SIDE}x3xui8>", "xbf16>"):
        assert sign in programs["parts"] and sign not in programs["plain"]
    products = {name: program.count("dot_general") for name, program in programs.items()}
    # The products of a block's forward pass stand in the backward pass once more; frozen towers have no such pass.
    assert products["frozen"] < products["plain"] < products["remat"]
    loops = {name: program.count("stablehlo.while") for name, program in programs.items()}
    assert loops["unrolled"] < loops["plain"], "the loops over blocks"


@pytest.mark.slow
def test_a_step_does_not_compute_dropped_patches_or_a_locked_image_tower(programs):
    whole, half, texts, pixels = "tensor<8x5x16xf32>", "tensor<8x3x16xf32>", f"tensor<8x{TOKENS}x16xf32>", "x3xui8>"
    signs = {name: [sign in programs[name] for sign in (whole, half, texts, pixels)] for name in programs}
    assert signs["plain"] == [True, False, True, True]
    assert signs["dropped"] == [False, True, True, True]
    assert signs["locked"] == [False, False, True, False]


@pytest.mark.slow
def test_float32_products_are_computed_at_the_highest_precision(programs):
    """All of a step in float32; of one in bfloat16 those of the heads and logits, which are no batched products."""
    for name, program in programs.items():
        lines = [line for line in program.splitlines() if "stablehlo.dot_general" in line]
        full = [line for line in lines if re.search(r"\(tensor<[^>]*xf32>, tensor<[^>]*xf32>\)", line)]
        full = [line for line in full if name != "parts" or "batching_dims" not in line]
        assert len(full) >= 8 and all("precision = [HIGHEST, HIGHEST]" in line for line in full)
