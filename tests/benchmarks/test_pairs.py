"""Test pairs of originals and altered copies in tasks: which are scored, and results equal to a direct count."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from rococo_jax.benchmarks.pair_scores import ImageNumbers, ListedScores, MatrixScores
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ChoiceTask, RankTask
from rococo_jax.benchmarks.tasks import choice as choices
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.evaluation.counts import rows_of_outcomes
from rococo_jax.evaluation.results import make_results
from tests.support.refusals import refused

IMAGES, EACH, WIDTH = 9, 3, 6
CAPTIONS = IMAGES * EACH
NAMES = SimpleNamespace(images=[f"{n}.jpg" for n in range(IMAGES)], texts=[f"text {n}" for n in range(2 * CAPTIONS)])


@pytest.fixture(scope="module")
def tables() -> Embeddings:
    """Small whole numbers, so that scores are exact and many differences tie."""
    generator = np.random.default_rng(0)
    rows = {ORIGINALS: IMAGES, "mixed": IMAGES, "fog_3": IMAGES, "uncorrupted": IMAGES, TEXTS: 2 * CAPTIONS}
    return Embeddings({name: generator.integers(-2, 3, (n, WIDTH)).astype(np.float32) for name, n in rows.items()})


def altered_captions() -> RankTask:
    """Three captions an image; of the last image's, one has no altered copy."""
    image, caption = np.arange(IMAGES), np.arange(2 * CAPTIONS - 1)
    origin = np.where(caption < CAPTIONS, -1, caption - CAPTIONS)
    owner = caption % CAPTIONS // EACH
    texts = Rows.of(TEXTS, caption)
    altered = caption >= CAPTIONS
    task = RankTask("image_to_text", "same_concept", Rows.of(ORIGINALS, image), texts, image, owner, altered)
    return dataclasses.replace(task, gallery_origin=origin)


def mixed_images() -> RankTask:
    """Captions look for their image; image i has image i + 1 mixed in, and the last one itself."""
    image, caption = np.arange(IMAGES), np.arange(CAPTIONS)
    gallery = Rows.of(ORIGINALS, image) + Rows.of("mixed", image)
    altered, none = np.repeat([False, True], IMAGES), np.full(IMAGES, -1)
    partner = np.append(image[1:], IMAGES - 1)
    task = RankTask(
        "text_to_image", "mix_0.9", Rows.of(TEXTS, caption), gallery, caption // EACH, np.tile(image, 2), altered
    )
    origin, mixed_in = np.concatenate([none, image]), np.concatenate([none, partner])
    return dataclasses.replace(task, gallery_origin=origin, gallery_mixed_in=mixed_in, seed=1)


def assert_figures(outcome, of_pairs) -> None:
    """The metrics by their definitions, from `(d_i, all d_j of wrong partners)` of each pair and own query."""
    half = [[np.mean((d > 0) + (d == 0) / 2) for d in (np.array([own]), wrong, own - wrong)] for own, wrong in of_pairs]
    first = np.mean([(wrong < own).all() for own, wrong in of_pairs])
    names, values = ("preference", "blind", "grounding", "difference_r1"), 100 * np.append(np.mean(half, 0), first)
    found = outcome.counted.values()
    assert [found[name] for name in names] == pytest.approx(list(values), abs=1e-9)


def test_altered_captions_are_compared_on_all_other_images(tables):
    images, texts = tables.tables[ORIGINALS], tables.tables[TEXTS]
    d = images @ (texts[: CAPTIONS - 1] - texts[CAPTIONS:-1]).T
    found = altered_captions().score(tables)
    assert_figures(found, [(d[k // EACH, k], np.delete(d[:, k], k // EACH)) for k in range(CAPTIONS - 1)])
    assert found.sizes["pairs"] == CAPTIONS - 1
    (run,) = found.counted.runs
    assert run.entries("grounding", run.sums).tolist() == np.bincount(np.arange(CAPTIONS - 1) // EACH).tolist()


def test_captions_of_both_mixed_images_are_not_unrelated(tables):
    d = tables.tables[TEXTS][:CAPTIONS] @ (tables.tables[ORIGINALS] - tables.tables["mixed"]).T
    owner = np.arange(CAPTIONS) // EACH
    of_pairs = [
        (d[own, image], d[(owner != image) & (owner != min(image + 1, IMAGES - 1)), image])
        for own, image in enumerate(owner)
    ]
    assert {len(wrong) for _, wrong in of_pairs} == {CAPTIONS - 2 * EACH, CAPTIONS - EACH}
    assert_figures(mixed_images().score(tables), of_pairs)


def test_captions_are_compared_on_corrupted_and_uncorrupted_images(tables):
    image, caption, owner = np.arange(IMAGES), np.arange(CAPTIONS), np.arange(CAPTIONS) // EACH
    captions, images = Rows.of(TEXTS, caption), Rows.of(ORIGINALS, image)
    clean = RankTask("text_to_image", "clean", captions, images, owner, image, np.zeros(IMAGES, bool))
    d = tables.tables[TEXTS][:CAPTIONS] @ (tables.tables["uncorrupted"] - tables.tables["fog_3"]).T
    of_pairs = [(d[own, owner[own]], d[owner != owner[own], owner[own]]) for own in caption]
    assert_figures(clean.on_images(Variant(corruption="fog", severity=3), "uncorrupted", None).score(tables), of_pairs)
    uncorrupted = clean.on_images(Variant(corruption="uncorrupted"), "uncorrupted", None)
    assert not any("grounding" in task.score(tables).counted.metrics for task in (clean, uncorrupted))


def test_a_matrix_of_similarities_gives_the_same_results_as_embeddings(tables):
    similarities = tables.tables[ORIGINALS] @ tables.tables[TEXTS].T
    task = altered_captions()
    found = task.score_by_pairs(MatrixScores({ORIGINALS: similarities}))
    assert found.counted.values() == task.score(tables).counted.values()


def choice(item_images, right, names=tuple(range(IMAGES))) -> ChoiceTask:
    """Return items of one image, a right text, itself again where its number is odd, and its altered copy."""
    texts = np.stack([right, np.where(right % 2, right, -1), right + CAPTIONS], axis=1)
    names = np.array(names)
    match = np.tile([True, True, False], (len(right), 1, 1))
    images, ids = Rows.of(ORIGINALS, np.arange(IMAGES)), [*map(str, range(len(right)))]
    return ChoiceTask("sugarcrepe", "swap", ids, images, names, item_images[:, None], texts, match, names[item_images])


def test_items_of_a_choice_are_compared_on_all_images_of_the_benchmark(tables):
    items, image = np.arange(20), np.random.default_rng(1).integers(0, 4, 20)
    task, texts, of_pairs = choice(image, items), tables.tables[TEXTS], []
    for item in sorted([*items, *items[1::2]]):
        d = tables.tables[ORIGINALS] @ (texts[item] - texts[item + CAPTIONS])
        of_pairs.append((d[image[item]], np.delete(d, image[item])))
    assert_figures(task.score(tables), of_pairs)
    right, wrong, group = task.compared_texts()
    assert (right.index.tolist(), wrong.index[0], group[0]) == (sorted([*items, *items[1::2]]), CAPTIONS, image[0])


def test_unrelated_images_of_a_crop_are_crops_of_other_images(tables):
    names, items = np.array([0, 0, 1, 2, 2, 2, 3, 4, 4]), np.arange(0, 18, 2)
    d = tables.tables[ORIGINALS] @ (tables.tables[TEXTS][items] - tables.tables[TEXTS][items + CAPTIONS]).T
    found = choice(np.arange(IMAGES), items, names).score(tables)
    assert_figures(found, [(d[crop, crop], d[names != names[crop], crop]) for crop in range(IMAGES)])
    assert found.pair_rows(NAMES)["image"].tolist() == [f"{name}.jpg" for name in names]


@pytest.mark.parametrize("make", [altered_captions, mixed_images])
def test_unseen_queries_of_a_ranking_keep_their_pairs_and_every_unrelated_query(tables, make):
    whole = make().score(tables)
    (rows,) = rows_of_outcomes([whole], [whole.of.query_group % 2 == 1])
    images = whole.of.pairs.group[whole.differences.pair]
    shares = 100 * whole.differences.grounding[images % 2 == 0].mean()
    assert rows.on_unseen_images().counted.values()["grounding"] == pytest.approx(shares)


def test_unseen_items_of_a_choice_keep_their_pairs(tables):
    items = np.arange(20)
    (rows,) = rows_of_outcomes([choice(items % 4, items).score(tables)], [items % 4 != 1])
    alone = choice(items[1::4] % 4, items[1::4]).score(tables)
    assert rows.on_unseen_images().counted.values() == alone.counted.values()


def test_a_single_image_gets_a_note_instead_of_numbers(tables):
    task = altered_captions()
    only = np.flatnonzero(task.gallery_group == 0)
    alone = dataclasses.replace(
        task, variant="danger", queries=task.queries[:1], query_group=task.query_group[:1], gallery=task.gallery[only],
        gallery_group=task.gallery_group[only], gallery_altered=task.gallery_altered[only],
        gallery_origin=np.where(only < CAPTIONS, -1, only - CAPTIONS),
    )  # fmt: skip
    results = make_results("m", "paper", {}, [alone.score(tables)])
    assert "blind" not in results["tasks"]["image_to_text"]["danger"]
    assert results["notes"] == [
        "image_to_text, danger: no preference, blind and grounding, because no image or caption is unrelated to a pair"
    ]


def test_a_choice_with_too_many_items_and_images_gets_a_note_instead_of_numbers(tables, monkeypatch):
    items = np.arange(4)
    task = choice(items, items)
    monkeypatch.setattr(choices, "MOST_DIFFERENCES", len(task.ids) * len(task.images) - 1)
    found = task.score(tables)
    assert found.differences is None and found.counted is not None
    results = make_results("m", "paper", {}, [found])
    why = "no preference, blind and grounding, because 4 items by 9 images are too many to compare"
    assert results["notes"] == [f"sugarcrepe, swap: {why}"]
    # Baselines without images still have their pairs.
    right, _, group = task.compared_texts()
    assert sorted(right.index.tolist()) == [0, 1, 1, 2, 3, 3] and group.tolist() == [0, 1, 1, 2, 3, 3]
    monkeypatch.setattr(choices, "MOST_DIFFERENCES", len(task.ids) * len(task.images))
    assert task.score(tables).differences is not None


def test_a_pair_without_a_score_is_refused():
    """Another pair's score stood in for it, where choosing and ranking disagreed by a bit."""
    numbers = ImageNumbers({ORIGINALS: 3})
    listed = ListedScores(numbers, np.array([0, 4, 7]), np.array([0.1, 0.5, 0.9]), 3, 1.0, "reranker")
    assert listed.of(np.array([[2, 0]]), np.array([[1, 0]])).tolist() == [[0.9, 0.1]]
    for image, text in ((0, 1), (2, 2), (0, 2)):
        refused(
            rf"reranker.*none of image {image} with text {text}", listed.of, np.array([1, image]), np.array([1, text])
        )
    matrix = MatrixScores({ORIGINALS: np.eye(3)}, "similarities")
    assert matrix.of(np.array([2, 0]), np.array([2, 1])).tolist() == [1.0, 0.0]
    refused("similarities.*none of image 3 with text 1", matrix.of, np.array([0, 3]), np.array([1, 1]))
