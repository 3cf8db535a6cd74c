"""The design of the population: what a fraction of a grid must keep for its factors to be told apart."""

from pathlib import Path

import numpy as np
import pytest

from rococo_jax.sweep.plan import make_plan

pytestmark = pytest.mark.quick
CONFIG = Path(__file__).parents[2] / "configs" / "ablations" / "population.py"


@pytest.fixture(scope="module")
def plan():
    return make_plan(CONFIG)


def test_two_level_factors_are_balanced_within_every_pair_of_towers(plan):
    cells = {}
    for arm in plan.arms:
        image, text, *levels = arm.name.split("+")
        cells.setdefault((image, text), []).append(levels)
    assert len(cells) == 18
    for levels in cells.values():
        assert all(len(set(factor)) == 2 for factor in zip(*levels, strict=True))


def test_no_two_level_factors_vary_together(plan):
    names = np.array([arm.name.split("+")[2:] for arm in plan.arms])
    signs = np.stack([np.where(column == column[0], 1, -1) for column in names.T])
    correlations = np.abs(signs @ signs.T / len(plan.arms))[np.triu_indices(3, 1)]
    assert correlations.max() < 0.12


def test_every_arm_is_a_run_of_its_own_with_the_makes_that_its_name_says(plan):
    assert len(plan.runs) == len(plan.points) == 72
    for point in plan.points:
        _, text, size, loss, scenes = point.arm.split("+")
        spec = point.config.init.spec
        assert (spec.text.attention, spec.logit_bias) == (text, loss == "sigmoid")
        assert spec.text.layers == {"small": 2, "large": 3}[size]
        assert (point.config.losses.contrastive.kind, point.config.data.images) == (loss, f"scenes:{scenes}")
