"""RAS and its parts against the formulas written out, their range, and every kind of task under corruption."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ChoiceTask, ClassifyTask, RankTask
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.evaluation.results import make_results
from rococo_jax.metrics.change import METRICS, alignment_change, change_columns, change_counts, confidence_of
from rococo_jax.metrics.counts import Counts
from tests.support.made_runs import unit

ITEMS, CANDIDATES = 400, 5


def random_sureness(seed, spread):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(ITEMS, CANDIDATES)) * spread
    right = np.arange(CANDIDATES) == np.random.default_rng(9).integers(0, CANDIDATES, ITEMS)[:, None]
    return scores, right, confidence_of(scores, right, 2.0)


def test_changes_match_their_formulas():
    (scores, right, before), (other, _, after) = random_sureness(0, 1.0), random_sureness(1, 2.0)
    p, q = (scipy.special.softmax(2.0 * each, axis=1) for each in (scores, other))
    (answer, new_answer), rows = (each.argmax(1) for each in (p, q)), np.arange(ITEMS)
    was, now = right[rows, answer], right[rows, new_answer]
    u_p, u_q = (scipy.stats.entropy(each, axis=1) / np.log(CANDIDATES) for each in (p, q))
    a_p, a_q = 1 - abs(p.max(1) - was), 1 - abs(q.max(1) - now)
    r = (a_q - a_p) - abs(u_q - u_p)
    np.testing.assert_allclose(alignment_change(before, after), r, atol=1e-12)
    assert Counts.of_rows(change_columns(change_counts(before, after)), rows, METRICS).values() == pytest.approx({
        "ras": r.mean(),
        "ras_destructive": r[r < 0].sum() / ITEMS,
        "ras_corrective": r[r > 0].sum() / ITEMS,
        "consistency": 100 * np.mean(answer == new_answer),
        "right_to_wrong": 100 * np.mean(was & ~now),
        "wrong_to_right": 100 * np.mean(~was & now),
        "erroneous_confidence": 100 * np.mean(~now & (u_q < u_p)),
        "hesitation": 100 * np.mean(was & now & (u_q > u_p)),
    })  # fmt: skip


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e3])
def test_changes_are_zero_without_a_change_and_stay_in_their_range(spread):
    _, _, before = random_sureness(0, spread)
    same = Counts.of_rows(change_columns(change_counts(before, before)), np.arange(ITEMS), METRICS).values()
    assert same["ras"] == same["right_to_wrong"] == same["hesitation"] == 0 and same["consistency"] == 100
    for seed in range(1, 4):
        for other in (1e-6, 1.0, 1e3):
            r = alignment_change(before, random_sureness(seed, other)[2])
            assert r.min() > -2 and r.max() <= 1


def tasks_of_every_kind():
    every, names = np.arange(12), [str(place) for place in range(12)]
    images, texts = Rows.of(ORIGINALS, every), np.stack([every, (every + 1) % 12], axis=1)
    match = np.tile([[[True, False]]], (12, 1, 1))
    yield ClassifyTask("classes", "clean", ("a", "b", "c"), np.arange(3)[:, None], images, every, names, every % 3)
    yield RankTask("image_to_text", "clean", images, Rows.of(TEXTS, every), every, every, np.zeros(12, bool))
    yield ChoiceTask("choices", "all", names, images, every, every[:, None], texts, match, every)


@pytest.mark.parametrize("task", [*tasks_of_every_kind()], ids=lambda task: task.name)
def test_every_kind_of_task_reports_changes_under_corruption(task):
    rng = np.random.default_rng(0)
    vectors = {name: unit(rng.normal(size=(12, 6))) for name in (TEXTS, ORIGINALS, "fog_3")}
    tables = {**vectors, "uncorrupted": vectors[ORIGINALS], "rain_3": vectors[ORIGINALS]}
    images = [Variant(corruption="uncorrupted"), *(Variant(corruption=kind, severity=3) for kind in ("fog", "rain"))]
    tasks = [task, *(task.on_images(each, "uncorrupted", None) for each in images)]
    outcomes = [each.score(Embeddings(tables, logit_scale=5.0)) for each in tasks]
    seen = [outcome.touched(np.arange(12) % 3 == 0) for outcome in outcomes]
    found = make_results("m", "paper", {}, outcomes, seen=seen)["tasks"][task.name]
    fog, rain, fog_unseen = (
        next(found[name] for name in found if name.endswith(end)) for end in ("fog_3", "rain_3", "fog_3/unseen")
    )
    names = {metric.name for metric in METRICS}
    assert names <= set(fog) and names <= set(fog_unseen) and not names & set(found[task.variant])
    assert rain["ras"] == 0 and rain["consistency"] == 100
    assert -2 < fog["ras"] < 1 and fog["consistency"] < 100
    ras = outcomes[2].change_counts(outcomes[1])["ras"]
    assert fog_unseen["ras"] == pytest.approx(ras[~seen[2]].mean())
