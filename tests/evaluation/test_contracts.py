"""A new kind of model and a new companion are one file each: found where they lie, used by the runner as they are."""

import dataclasses
import sys

import pyarrow.parquet as pq
import pytest

import rococo_jax
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation import companions, models
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models import model as contract
from rococo_jax.evaluation.runner import evaluate_model
from tests.support.world import write_world

KIND = '''
"""Models that read a caption's number: `ending:1` likes the image's own, `ending:-1` any other."""
import numpy as np

from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.evaluation.models.model import Model, opens_sources
from rococo_jax.benchmarks.pair_scores import MatrixScores
from rococo_jax.benchmarks.tables import ORIGINALS


class Ending(Model):
    notes = ("by the ending",)

    def __init__(self, sign):
        self.sign, self.name = sign, f"ending {sign}"

    def describe(self):
        return {"sign": self.sign}

    def outcomes(self, benchmark, settings, cache) -> list[Outcome]:
        own = np.array([[text[13] == name[0] for text in benchmark.texts] for name in benchmark.images], float)
        original = np.array([text[-1].isdigit() for text in benchmark.texts], float)
        scores = MatrixScores({ORIGINALS: self.sign * own + original / 2})
        return [task.score_by_pairs(scores) for task in benchmark.tasks]


@opens_sources
def open_ending(source, loading):
    named = isinstance(source, str) and source.startswith("ending:")
    return Ending(int(source.removeprefix("ending:"))) if named else None
'''
COMPANION = '''
"""How many texts a benchmark has."""
import numpy as np

from rococo_jax.evaluation.companions import Beside, Companion


class Counting(Companion):
    def beside(self, scored) -> Beside:
        benchmark, count = scored.benchmark, len(scored.benchmark.texts)
        columns = [{"texts": np.full(len(each.rows(benchmark)), count)} for each in scored.outcomes]
        return Beside(columns=columns, notes=["texts were counted"], part={"texts": {benchmark.name: count}})


def make(training):
    return Counting()
'''


@pytest.fixture
def with_own_files(tmp_path, monkeypatch):
    """One more file in the folder of models, one more in that of companions; data of two images."""
    for package, name, text in ((models, "ending", KIND), (companions, "counting", COMPANION)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    captions = [[f"caption {k} of {number}" for k in range(5)] for number in range(2)]
    yield write_world(tmp_path, captions, name="{}.png", altered={"danger": "{} altered".format})
    contract.OPENERS[:] = [opener for opener in contract.OPENERS if opener.__name__ != "open_ending"]
    for name in ("models.ending", "companions.counting"):
        sys.modules.pop(f"rococo_jax.evaluation.{name}", None)


@pytest.mark.parametrize(("sign", "r1"), [(1, 100.0), (-1, 0.0)])
def test_a_kind_of_model_and_a_companion_are_one_file_each(with_own_files, sign, r1):
    data, out = {name: with_own_files / name for name in ("images", "annotations")}, with_own_files / "out"
    results = rococo_jax.evaluate(f"ending:{sign}", **data, out=out, mixed_galleries=())
    assert results["model"] == f"ending {sign}" and results["fingerprint"]["model"] == {"sign": sign}
    assert {"by the ending", "texts were counted"} <= set(results["notes"])
    assert results["texts"] == {"rococo": 20} and "baselines" in results
    assert set(pq.read_table(out / "per_query.parquet")["texts"].to_pylist()) == {20}
    for task, variant in (("image_to_text", "clean"), ("image_to_text", "danger"), ("text_to_image", "clean")):
        assert results["tasks"][task][variant]["r1"] == r1


def test_the_notes_the_parts_and_the_errors_of_all_benchmarks_are_in_the_results(with_own_files):
    settings = Settings(mixed_galleries=())
    data = {name: with_own_files / name for name in ("images", "annotations")}
    (first,) = open_benchmarks(settings, **data)
    tasks = tuple(dataclasses.replace(task, name=f"more_{task.name}") for task in first.tasks)
    second = dataclasses.replace(first, name="more", tasks=tasks, notes=("the second's own",))
    model, beside = models.open_model("ending:-1"), companions.standard_companions()
    evaluated = evaluate_model(model, [first, second], settings, EmbeddingCache(None), beside, examples=True)
    results, to_text = evaluated.results, {"image_to_text", "more_image_to_text"}
    assert "the second's own" in results["notes"] and results["texts"] == {"rococo": 20, "more": 20}
    assert set(results["baselines"]["tasks"]) == {example.task for example in evaluated.examples} == to_text
