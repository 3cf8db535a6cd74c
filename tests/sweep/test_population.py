"""The ablations that come with the project, and the design of the population: a fraction of a grid."""

import functools

import numpy as np
import pytest

from rococo_jax.sweep.plan import make_plan
from rococo_jax.training.config import flat, read_config
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.quick
ABLATIONS = CHECKOUT / "configs" / "ablations"
# Samples of every run of an ablation of the batch size, which its page names.
SAMPLES = {"batch_size.py": 102_400, "batch_size_scenes.py": 196_608}


@functools.cache
def plan_of(name):
    return make_plan(ABLATIONS / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in ABLATIONS.glob("*.py")))
def test_shipped_ablations_differ_only_in_their_declared_keys(name):
    plan = plan_of(name)
    swept = {key for axis in plan.axes for key in axis.keys} | {key for arm in plan.arms for key in arm.overrides}
    if "batch_size" in swept:
        swept |= {"steps", "optimizer.learning_rate", "log.every", "checkpoint.every"}
        assert {point.work for point in plan.points} == {SAMPLES[name]}
    swept |= {"init.spec" for key in swept if key.startswith("init.spec.")}  # one leaf
    swept |= {"seed"} if len(plan.seeds) > 1 else set()
    base = flat(plan.base)
    for point in plan.points:
        leaves = flat(point.config)
        assert {key for key in leaves if leaves[key] != base[key]} <= swept
        assert point.config.losses.sc.count <= point.config.data.feature_pool.captions
    assert read_config(ABLATIONS / name) == plan.base


@pytest.fixture(scope="module")
def plan():
    return plan_of("population.py")


def test_two_level_factors_are_balanced_within_every_pair_of_towers(plan):
    cells = {}
    for arm in plan.arms:
        image, text, *levels = arm.name.split("+")
        cells.setdefault((image, text), []).append(levels)
    assert len(cells) == 15
    for levels in cells.values():
        assert all(len(set(factor)) == 2 for factor in zip(*levels, strict=True))


def test_no_two_level_factors_vary_together(plan):
    names = np.array([arm.name.split("+")[2:] for arm in plan.arms])
    signs = np.stack([np.where(column == column[0], 1, -1) for column in names.T])
    correlations = np.abs(signs @ signs.T / len(plan.arms))[np.triu_indices(3, 1)]
    assert correlations.max() < 0.12


def test_every_arm_is_a_separate_run_with_the_settings_of_its_name(plan):
    assert len(plan.runs) == len(plan.points) == 60
    for point in plan.points:
        _, text, size, loss, scenes = point.arm.split("+")
        spec = point.config.init.spec
        assert (spec.text.attention, spec.logit_bias) == (text, loss == "sigmoid")
        assert spec.text.layers == {"small": 2, "large": 3}[size]
        assert (point.config.losses.contrastive.kind, point.config.data.images) == (loss, f"scenes:{scenes}")
