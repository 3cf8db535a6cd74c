"""RAS and its parts against the formulas written out, their range, and every kind of task under corruption."""

import numpy as np
import pytest
import scipy.stats

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ChoiceTask, ClassifyTask, RankTask
from rococo_jax.evaluation.results import make_results
from rococo_jax.metrics.change import METRICS, Sureness, alignment_change, count_changes, sureness_of

ITEMS, CANDIDATES = 400, 5


def random_sureness(seed, spread):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(ITEMS, CANDIDATES)) * spread
    right = np.arange(CANDIDATES) == np.random.default_rng(9).integers(0, CANDIDATES, ITEMS)[:, None]
    return scores, right, sureness_of(scores, right, 2.0)


def test_the_formulas_written_out_agree():
    (scores, right, before), (other, _, after) = random_sureness(0, 1.0), random_sureness(1, 2.0)

    def parts(values):
        p = np.exp(2.0 * values) / np.exp(2.0 * values).sum()
        return p, scipy.stats.entropy(p) / np.log(CANDIDATES)

    expected = []
    for one, two, own in zip(scores, other, right, strict=True):
        (p, u_p), (q, u_q) = parts(one), parts(two)
        a_p, a_q = (1 - abs(each.max() - float(own[each.argmax()])) for each in (p, q))
        expected.append((a_q - a_p) - abs(u_q - u_p))
    np.testing.assert_allclose(alignment_change(before, after), expected, atol=1e-12)
    values = count_changes(before, after, np.arange(ITEMS)).values()
    assert values["ras"] == pytest.approx(np.mean(expected))
    assert values["ras"] == pytest.approx(values["ras_destructive"] + values["ras_corrective"])
    assert values["ras_destructive"] <= 0 <= values["ras_corrective"]
    was, now = right[np.arange(ITEMS), scores.argmax(1)], right[np.arange(ITEMS), other.argmax(1)]
    assert values["right_to_wrong"] == pytest.approx(100 * np.mean(was & ~now))
    assert values["consistency"] == pytest.approx(100 * np.mean(scores.argmax(1) == other.argmax(1)))


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e3])
def test_no_change_is_zero_and_the_range_is_kept(spread):
    _, _, before = random_sureness(0, spread)
    same = count_changes(before, before, np.arange(ITEMS)).values()
    assert same["ras"] == same["right_to_wrong"] == same["hesitation"] == 0 and same["consistency"] == 100
    for seed in range(1, 4):
        for other in (1e-6, 1.0, 1e3):
            r = alignment_change(before, random_sureness(seed, other)[2])
            assert r.min() > -2 and r.max() <= 1


def test_erroneous_confidence_and_hesitation_by_hand():
    before = Sureness(np.array([0, 0, 0]), np.array([True, True, False]), np.array([0.6] * 3), np.array([0.5] * 3))
    after = Sureness(np.array([1, 0, 1]), np.array([False, True, False]), np.array([0.9, 0.5, 0.9]),
                     np.array([0.2, 0.7, 0.2]))  # fmt: skip
    values = count_changes(before, after, np.arange(3)).values()
    assert values["erroneous_confidence"] == pytest.approx(200 / 3)
    assert values["hesitation"] == pytest.approx(100 / 3) == values["right_to_wrong"]


def tasks_of_every_kind():
    images = Rows.of(ORIGINALS, np.arange(12))
    label = np.arange(12) % 3
    yield ClassifyTask("classes", "clean", ("a", "b", "c"), np.arange(3)[:, None], images, np.arange(12),
                       [str(place) for place in range(12)], label)  # fmt: skip
    altered = np.zeros(12, bool)
    yield RankTask(
        "image_to_text", "clean", images, Rows.of(TEXTS, np.arange(12)), np.arange(12), np.arange(12), altered
    )
    texts = np.stack([np.arange(12), (np.arange(12) + 1) % 12], axis=1)
    match = np.tile(np.array([[[True, False]]]), (12, 1, 1))
    yield ChoiceTask("choices", "all", [str(place) for place in range(12)], images, np.arange(12),
                     np.arange(12)[:, None], texts, match, np.arange(12))  # fmt: skip


@pytest.mark.parametrize("task", [*tasks_of_every_kind()], ids=lambda task: task.name)
def test_every_kind_of_task_tells_what_corruption_changed(task):
    rng = np.random.default_rng(0)
    unit = {name: rng.normal(size=(12, 6)) for name in (TEXTS, ORIGINALS, "fog_3")}
    unit = {
        name: (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for name, each in unit.items()
    }
    embeddings = Embeddings({**unit, "uncorrupted": unit[ORIGINALS], "rain_3": unit[ORIGINALS]}, logit_scale=5.0)
    tasks = [task, *(task.on_images(name, "uncorrupted", None) for name in ("uncorrupted", "fog_3", "rain_3"))]
    outcomes = [each.score(embeddings) for each in tasks]
    made = make_results("m", "paper", {}, outcomes)["tasks"][task.name]
    names = [metric.name for metric in METRICS]
    fog, rain = (next(made[name] for name in made if name.endswith(images)) for images in ("fog_3", "rain_3"))
    assert set(names) <= set(fog) and not set(names) & set(made[task.variant])
    assert rain["ras"] == 0 and rain["consistency"] == 100
    assert -2 < fog["ras"] < 1 and fog["consistency"] < 100
    unseen = np.arange(12) % 3 > 0
    some = [outcome.only(outcome.touched(unseen), "unseen") for outcome in outcomes]
    made = make_results("m", "paper", {}, [*outcomes, *some])["tasks"][task.name]
    of_some = next(made[name] for name in made if name.endswith("fog_3/unseen"))
    assert set(names) <= set(of_some) and of_some["ras"] == pytest.approx(mean_ras(outcomes, unseen))


def mean_ras(outcomes, images: np.ndarray) -> float:
    """RAS of the items of some images, from the changes of all items."""
    before, after = (next(each for each in outcomes if each.variant.endswith(end)) for end in ("uncorrupted", "fog_3"))
    changes = after.change_from(before)
    return float(changes.counts[after.touched(images), changes.columns.index("ras")].mean())
