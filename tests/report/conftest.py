"""A fifth of the swaps in comparisons of results, except where a test records a number that follows from them."""

import functools

import pytest

from rococo_jax.metrics.paired import paired_differences
from rococo_jax.report import task_tests

RECORDED = ("test_drawn",)


@pytest.fixture(scope="module", autouse=True)
def fewer_swaps(request):
    """Draw 1,999 swaps instead of 9,999, which are a third of the time of a page; `tests/metrics` tests all of them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in RECORDED:
            patch.setattr(task_tests, "paired_differences", functools.partial(paired_differences, flips=1999))
        yield
