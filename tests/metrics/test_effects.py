"""Effects of factors beside statsmodels' analysis of variance, and what is refused."""

import itertools

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.stats.anova import anova_lm

from rococo_jax.errors import InputError
from rococo_jax.metrics.effects import main_effects

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def makes():
    """An unbalanced design: 3 x 2 x 2 makes, some of them twice, without the last."""
    levels = [*itertools.product(("vit", "resnet", "convnext"), ("softmax", "sigmoid"), ("small", "large"))]
    levels = (levels + levels[:5])[1:]
    rng = np.random.default_rng(1)
    given = rng.normal(50, 10, len(levels))
    shift = {"vit": 3, "resnet": -1, "convnext": 0, "softmax": 0, "sigmoid": 2, "small": 0, "large": 0}
    values = np.array([[sum(map(shift.get, row)) for row in levels], given * 0.5]) + rng.normal(0, 1, (2, len(levels)))
    return levels, values, given


@pytest.mark.parametrize("held", [False, True])
def test_effects_intervals_and_p_are_those_of_statsmodels(makes, held):
    levels, values, given = makes
    frame = pd.DataFrame(levels, columns=["image", "loss", "size"]).assign(z=given)
    found = main_effects(levels, values, given if held else None)
    for metric, y in enumerate(values):
        line = smf.ols("y ~ C(image, Sum) + C(loss, Sum) + C(size, Sum)" + " + z" * held, frame.assign(y=y)).fit()
        table = anova_lm(line, typ=2)
        for effects, name in zip(found, ("image", "loss", "size"), strict=True):
            assert effects.p[metric] == pytest.approx(table.loc[f"C({name}, Sum)", "PR(>F)"], rel=1e-6)
            known = {level: line.params.get(f"C({name}, Sum)[S.{level}]") for level in effects.levels}
            last = -sum(each for each in known.values() if each is not None)
            expected = [last if each is None else each for each in known.values()]
            np.testing.assert_allclose(effects.effect[metric], expected, atol=1e-9)
            bounds = line.conf_int().T
            for place, level in enumerate(effects.levels):
                if known[level] is not None:
                    expected = bounds[f"C({name}, Sum)[S.{level}]"]
                    np.testing.assert_allclose([effects.low[metric, place], effects.high[metric, place]], expected)


def test_makes_are_counted_by_level(makes):
    image, loss, _ = main_effects(*makes[:2])
    assert dict(zip(image.levels, image.makes, strict=True)) == {"vit": 7, "resnet": 5, "convnext": 4}
    assert sum(loss.makes) == len(makes[0])


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ([["a", "x"], ["b", "x"], ["a", "x"], ["b", "x"]], "only 'x'"),
        ([["a", "x"], ["b", "y"], ["a", "x"], ["b", "y"], ["a", "x"]], "vary together"),
        ([["a", "x"], ["b", "x"], ["a", "y"]], "found 3"),
    ],
)
def test_a_design_that_tells_nothing_is_refused(levels, found):
    with pytest.raises(InputError, match=found):
        main_effects(levels, np.zeros((1, len(levels))))
