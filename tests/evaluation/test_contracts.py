"""A new kind of model is one class, which the runner takes as it is."""

import dataclasses

import numpy as np
import pytest

from rococo_jax.benchmarks.pair_scores import MatrixScores
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.runner import evaluate_into, evaluate_model
from tests.support.world import write_world

SETTINGS = Settings(mixed_galleries=())


class Ending(Model):
    """Reads a caption's number: sign 1 prefers the image's own captions, -1 any other."""

    notes = ("by the ending",)

    def __init__(self, sign):
        self.sign, self.name = sign, f"ending {sign}"

    def describe(self):
        return {"sign": self.sign}

    def outcomes(self, benchmark, settings, cache):
        own = np.array([[text[13] == name[0] for text in benchmark.texts] for name in benchmark.images], float)
        original = np.array([text[-1].isdigit() for text in benchmark.texts], float)
        scores = MatrixScores({ORIGINALS: self.sign * own + original / 2})
        return [task.score_by_pairs(scores) for task in benchmark.tasks]


@pytest.fixture
def benchmark(tmp_path):
    """Two images with five captions each."""
    captions = [[f"caption {k} of {number}" for k in range(5)] for number in range(2)]
    world = write_world(tmp_path, captions, name="{}.png", altered={"danger": "{} altered".format})
    (opened,) = open_benchmarks(SETTINGS, images=world / "images", annotations=world / "annotations")
    return opened


@pytest.mark.parametrize(("sign", "r1"), [(1, 100.0), (-1, 0.0)])
def test_a_new_kind_of_model_needs_only_one_class(benchmark, tmp_path, sign, r1):
    results, _ = evaluate_into(tmp_path / "out", Ending(sign), [benchmark], SETTINGS, EmbeddingCache(None))
    assert results["model"] == f"ending {sign}" and results["fingerprint"]["model"] == {"sign": sign}
    assert "by the ending" in results["notes"] and "baselines" in results
    for task, variant in (("image_to_text", "clean"), ("image_to_text", "danger"), ("text_to_image", "clean")):
        assert results["tasks"][task][variant]["r1"] == r1


def test_results_contain_the_notes_and_parts_and_errors_of_all_benchmarks(benchmark):
    tasks = tuple(dataclasses.replace(task, name=f"more_{task.name}") for task in benchmark.tasks)
    second = dataclasses.replace(benchmark, name="more", tasks=tasks, notes=("the second's own",))
    evaluated = evaluate_model(Ending(-1), [benchmark, second], SETTINGS, EmbeddingCache(None), examples=True)
    results, to_text = evaluated.results, {"image_to_text", "more_image_to_text"}
    assert "the second's own" in results["notes"]
    assert set(results["baselines"]["tasks"]) == {example.task for example in evaluated.examples} == to_text
