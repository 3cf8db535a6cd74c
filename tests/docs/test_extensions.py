"""The code of the pages on extensions runs as printed and gives what the pages promise."""

import re
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.benchmarks import benchmark
from tests.support.paths import CHECKOUT


def code_of(page: str) -> dict:
    """Execute the `py` block of a page and return its names."""
    text = (CHECKOUT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict = {"__name__": page}
    exec(compile(block, f"{page}.md", "exec"), names)
    return names


def test_the_documented_benchmark_is_registered_with_its_headline(monkeypatch):
    monkeypatch.setattr(benchmark, "_REGISTRY", dict(benchmark._REGISTRY))
    info = code_of("add-benchmark")["INFO"]
    assert benchmark._REGISTRY["riddles"] is info and info.headline.metric == "ota"


def test_the_documented_metric_is_computed_from_shares():
    metric = code_of("add-metric")["WRONG_FIRST"]
    assert metric.function({"top1_other": np.array(10.0), "top1_other_altered": np.array(5.0)}) == 15.0


def test_the_documented_loss_has_a_value_and_a_weight():
    term = code_of("add-loss")["PULL"]
    images, texts = jnp.eye(2, 3), jnp.eye(2, 3)[::-1]
    value, logged = term.function(SimpleNamespace(images=images, texts=texts), None, None)
    assert float(value) == pytest.approx(2.0) and logged.keys() == {"pull"} and "weight" in term.keys


def test_the_documented_family_is_read_like_clip():
    family = code_of("add-model-family")["MY_CLIP"]
    assert family.model_types == ("my_clip",) and family.name == "my_clip"
