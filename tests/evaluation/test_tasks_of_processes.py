"""Several processes score a benchmark's tasks: each takes whole ones, and all know every outcome."""

import pickle

import jax
import numpy as np

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.evaluation.models import model
from rococo_jax.runtime import make_mesh
from tests.support.made_runs import CAPTIONS, IMAGES, made_benchmark, unit


def test_each_task_is_scored_by_one_process_and_all_receive_its_outcome(monkeypatch):
    tasks, rng = made_benchmark().tasks[:4], np.random.default_rng(0)
    sizes = {ORIGINALS: IMAGES, TEXTS: 3 * CAPTIONS, "mix_0.9_seed1": IMAGES, "mix_0.9_seed10": IMAGES}
    embeddings = Embeddings({name: unit(rng.normal(size=(rows, 16))) for name, rows in sizes.items()})
    whole = [task.score(embeddings) for task in tasks]
    scored = []

    def send(name, make):
        scored.append(pickle.loads(pickle.dumps(make())))
        return [dict(enumerate(whole))]

    monkeypatch.setattr(model, "gather", send)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    for process in range(3):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        assert model.score_tasks(tasks, embeddings, make_mesh()) == whole
    assert sorted(place for each in scored for place in each) == [0, 1, 2, 3] and all(scored)
    for place, outcome in (entry for each in scored for entry in each.items()):
        assert (outcome.task, outcome.variant) == (tasks[place].name, tasks[place].variant)
        assert outcome.counted.values() == whole[place].counted.values()
