"""A new kind of model and a new companion are one file each: found where they lie, used by the runner as they are."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

import rococo_jax
from rococo_jax.evaluation import companions, models
from rococo_jax.evaluation.models import model as contract

KIND = '''
"""Models that are a seed: every similarity is drawn from it."""
import numpy as np

from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.evaluation.models.model import Model, opens_sources
from rococo_jax.evaluation.models.stored_similarities import rank_by_similarities


class Drawn(Model):
    notes = ("drawn at random",)

    def __init__(self, seed):
        self.seed, self.name = seed, f"seed {seed}"

    def describe(self):
        return {"seed": self.seed}

    def outcomes(self, benchmark, settings, cache) -> list[Outcome]:
        scores = np.random.default_rng(self.seed).random((len(benchmark.images), len(benchmark.texts)))
        return [rank_by_similarities(task, scores) for task in benchmark.tasks]


@opens_sources
def open_drawn(source, loading):
    named = isinstance(source, str) and source.startswith("seed:")
    return Drawn(int(source.removeprefix("seed:"))) if named else None
'''
COMPANION = '''
"""How many texts a benchmark has."""
from rococo_jax.evaluation.companions import Beside, Companion


class Counting(Companion):
    def beside(self, model, benchmark, outcomes, settings, cache) -> Beside:
        columns = [{"texts": [len(benchmark.texts)] * len(outcome.rows(benchmark))} for outcome in outcomes]
        return Beside(columns=columns, notes=["texts were counted"], part={"texts": {benchmark.name: 4}})


def make(training):
    return Counting()
'''


@pytest.fixture
def with_own_files(tmp_path, monkeypatch):
    """One more file in the folder of models, one more in that of companions; data of two images."""
    for package, name, text in ((models, "drawn", KIND), (companions, "counting", COMPANION)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    openers = [*contract.OPENERS]
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations").mkdir()
    items = []
    for number in range(2):
        Image.new("RGB", (8, 8), (number * 200, 0, 0)).save(tmp_path / "images" / f"{number}.png")
        items.append({"image": f"{number}.png", "caption": [f"caption {k} of {number}" for k in range(5)] * 2})
    (tmp_path / "annotations" / "danger.json").write_text(json.dumps(items))
    yield tmp_path
    contract.OPENERS[:] = openers
    for name in ("models.drawn", "companions.counting"):
        sys.modules.pop(f"rococo_jax.evaluation.{name}", None)


def test_a_kind_of_model_and_a_companion_are_one_file_each(with_own_files):
    data = {name: with_own_files / name for name in ("images", "annotations")}
    out = with_own_files / "out"
    results = rococo_jax.evaluate("seed:7", **data, out=out, mixed_galleries=())
    assert results["model"] == "seed 7" and results["fingerprint"]["model"] == {"seed": 7}
    assert {"drawn at random", "texts were counted"} <= set(results["notes"])
    assert results["texts"] == {"rococo": 4} and set(results["tasks"]) == {"image_to_text", "text_to_image"}
    # By hand: the best of the ten captions of an image, drawn from the seed.
    captions = json.loads((with_own_files / "annotations" / "danger.json").read_text())
    scores = np.random.default_rng(7).random((2, 10))
    assert len({text for item in captions for text in item["caption"]}) == 10
    owner = np.repeat([0, 1], 5)
    hits = owner[scores.argmax(axis=1)] == [0, 1]
    assert results["tasks"]["image_to_text"]["clean"]["r1"] == 100 * hits.mean()
