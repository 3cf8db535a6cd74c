"""Pairs of originals and altered copies in tasks: who is asked and left out, and figures equal to a direct count."""

import dataclasses

import numpy as np
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ChoiceTask, RankTask
from rococo_jax.benchmarks.tasks import choice as choices
from rococo_jax.evaluation.models.stored_similarities import rank_by_similarities
from rococo_jax.evaluation.results import make_results

IMAGES, EACH, WIDTH = 9, 3, 6
CAPTIONS = IMAGES * EACH


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


def figures(of_pairs) -> dict[str, float]:
    """The metrics from `(d_i, all d_j of wrong partners)` of each pair and own query, by their definitions."""
    half = [[np.mean((d > 0) + (d == 0) / 2) for d in (np.array([own]), wrong, own - wrong)] for own, wrong in of_pairs]
    first = np.mean([(wrong < own).all() for own, wrong in of_pairs])
    return dict(
        zip(
            ("preference", "blind", "grounding", "difference_r1"), 100 * np.append(np.mean(half, 0), first), strict=True
        )
    )


def test_altered_captions_are_asked_with_all_other_images(tables):
    images, texts = tables.tables[ORIGINALS], tables.tables[TEXTS]
    differences = images @ (texts[: CAPTIONS - 1] - texts[CAPTIONS:-1]).T
    of_pairs = [
        (differences[pair // EACH, pair], np.delete(differences[:, pair], pair // EACH)) for pair in range(CAPTIONS - 1)
    ]
    found = altered_captions().score(tables)
    assert found.grounding.values() == pytest.approx(figures(of_pairs), abs=1e-9)
    assert found.sizes["pairs"] == CAPTIONS - 1


def test_captions_of_both_mixed_images_are_no_wrong_partners(tables):
    captions = tables.tables[TEXTS][:CAPTIONS]
    differences = captions @ (tables.tables[ORIGINALS] - tables.tables["mixed"]).T
    owner = np.arange(CAPTIONS) // EACH
    of_pairs = [
        (differences[own, image], differences[(owner != image) & (owner != min(image + 1, IMAGES - 1)), image])
        for image in range(IMAGES)
        for own in np.flatnonzero(owner == image)
    ]
    assert {len(wrong) for _, wrong in of_pairs} == {CAPTIONS - 2 * EACH, CAPTIONS - EACH}
    found = mixed_images().score(tables)
    assert found.grounding.values() == pytest.approx(figures(of_pairs), abs=1e-9)


def test_captions_are_asked_about_corrupted_images_beside_uncorrupted_ones(tables):
    image, caption = np.arange(IMAGES), np.arange(CAPTIONS)
    captions, images = Rows.of(TEXTS, caption), Rows.of(ORIGINALS, image)
    clean = RankTask("text_to_image", "clean", captions, images, caption // EACH, image, np.zeros(IMAGES, bool))
    differences = tables.tables[TEXTS][:CAPTIONS] @ (tables.tables["uncorrupted"] - tables.tables["fog_3"]).T
    owner = caption // EACH
    of_pairs = [(differences[own, owner[own]], differences[owner != owner[own], owner[own]]) for own in caption]
    found = clean.on_images("fog_3", "uncorrupted", None).score(tables)
    assert found.grounding.values() == pytest.approx(figures(of_pairs), abs=1e-9)
    assert clean.score(tables).grounding is None
    assert clean.on_images("uncorrupted", "uncorrupted", None).score(tables).grounding is None


def test_a_matrix_of_similarities_gives_the_same(tables):
    similarities = tables.tables[ORIGINALS] @ tables.tables[TEXTS].T
    task = altered_captions()
    found = rank_by_similarities(task, similarities)
    assert found.grounding.values() == task.score(tables).grounding.values()


def choice(item_images, right, wrong, images=None, names=None) -> ChoiceTask:
    """Items of one image, a right text, a further one in every other item, and a wrong one."""
    count = len(item_images)
    further = np.where(np.arange(count) % 2, np.arange(count), -1)
    images = np.arange(IMAGES) if images is None else images
    return ChoiceTask(
        name="sugarcrepe",
        variant="swap",
        ids=tuple(map(str, range(count))),
        images=Rows.of(ORIGINALS, images),
        image_names=np.arange(IMAGES) if names is None else names,
        item_images=item_images[:, None],
        item_texts=np.stack([right, further, wrong], axis=1),
        match=np.tile(np.array([True, True, False]), (count, 1, 1)),
        group=(np.arange(IMAGES) if names is None else names)[item_images],
    )


def test_items_of_a_choice_are_asked_with_all_images_of_the_benchmark(tables):
    items, image = np.arange(20), np.random.default_rng(1).integers(0, 4, 20)
    task = choice(image, items, items + CAPTIONS)
    of_pairs = []
    for item in items:
        for right in (item, item) if item % 2 else (item,):
            d = tables.tables[ORIGINALS] @ (tables.tables[TEXTS][right] - tables.tables[TEXTS][item + CAPTIONS])
            of_pairs.append((d[image[item]], np.delete(d, image[item])))
    found = task.score(tables)
    assert found.grounding.values() == pytest.approx(figures(of_pairs), abs=1e-9)
    right, wrong, group = task.compared_texts()
    assert (right.index.tolist(), wrong.index[0], group[0]) == (sorted([*items, *items[1::2]]), CAPTIONS, image[0])


def test_a_crop_has_the_crops_of_other_images_alone_as_wrong_partners(tables):
    names = np.array([0, 0, 1, 2, 2, 2, 3, 4, 4])
    items = np.arange(0, 18, 2)
    task = choice(np.arange(IMAGES), items, items + CAPTIONS, names=names)
    task = dataclasses.replace(task, item_texts=np.where(np.arange(3) == 1, -1, task.item_texts))
    differences = tables.tables[ORIGINALS] @ (tables.tables[TEXTS][items] - tables.tables[TEXTS][items + CAPTIONS]).T
    of_pairs = [(differences[crop, crop], differences[names != names[crop], crop]) for crop in range(IMAGES)]
    found = task.score(tables)
    assert found.grounding.values() == pytest.approx(figures(of_pairs), abs=1e-9)
    assert found.pair_rows(_Names())["image"].tolist() == [f"{name}.jpg" for name in names]


@pytest.mark.parametrize("make", [altered_captions, mixed_images])
def test_some_queries_of_a_ranking_keep_their_pairs_and_all_wrong_partners(tables, make):
    whole = make().score(tables)
    wanted = whole.of.query_group % 2 == 0
    found = whole.only(wanted, "_even")
    kept = whole.of.pairs.group[whole.differences.pair] % 2 == 0
    shares = 100 * whole.differences.grounding[kept].mean()
    assert found.grounding.values()["grounding"] == pytest.approx(shares)
    assert (found.differences.wrong == whole.differences.wrong[kept]).all()
    assert found.pair_rows(_Names())["image"].tolist() == [
        f"{n}.jpg" for n in whole.of.pairs.group[whole.differences.pair][kept]
    ]


def test_some_items_of_a_choice_keep_their_pairs(tables):
    items = np.arange(20)
    whole = choice(items % 4, items, items + CAPTIONS).score(tables)
    found = whole.only(items % 4 == 1, "_some")
    alone = choice(items[1::4] % 4, items[1::4], items[1::4] + CAPTIONS)
    further = np.where(items[1::4] % 2, items[1::4], -1)
    alone = dataclasses.replace(alone, item_texts=np.stack([items[1::4], further, items[1::4] + CAPTIONS], axis=1))
    assert found.grounding.values() == alone.score(tables).grounding.values()
    assert found.pair_rows(_Names())["right"].tolist() == alone.score(tables).pair_rows(_Names())["right"].tolist()


class _Names:
    images = tuple(f"{n}.jpg" for n in range(IMAGES))
    texts = tuple(f"text {n}" for n in range(2 * CAPTIONS))


def test_one_image_alone_has_a_note_in_place_of_figures(tables):
    task = dataclasses.replace(altered_captions(), variant="danger")
    only = np.flatnonzero(task.gallery_group == 0)
    alone = dataclasses.replace(
        task, queries=task.queries[:1], query_group=task.query_group[:1], gallery=task.gallery[only],
        gallery_group=task.gallery_group[only], gallery_altered=task.gallery_altered[only],
        gallery_origin=np.where(only < CAPTIONS, -1, only - CAPTIONS),
    )  # fmt: skip
    results = make_results("m", "paper", {}, [alone.score(tables)])
    assert "blind" not in results["tasks"]["image_to_text"]["danger"]
    assert results["notes"] == [
        "image_to_text, danger: no preference, blind and grounding, because no pair has a wrong partner"
    ]


def test_a_choice_of_too_many_items_and_images_has_a_note_in_place_of_figures(tables, monkeypatch):
    items = np.arange(4)
    task = choice(items, items, items + CAPTIONS)
    monkeypatch.setattr(choices, "MOST_DIFFERENCES", len(task.ids) * len(task.images) - 1)
    found = task.score(tables)
    assert found.differences is None and found.counted is not None
    results = make_results("m", "paper", {}, [found])
    why = "no preference, blind and grounding, because 4 items by 9 images are too many to compare"
    assert results["notes"] == [f"sugarcrepe, {variant}: {why}" for variant in ("swap", "mean")]
    # Baselines without images still have their pairs.
    right, _, group = task.compared_texts()
    assert sorted(right.index.tolist()) == [0, 1, 1, 2, 3, 3] and group.tolist() == [0, 1, 1, 2, 3, 3]
    monkeypatch.setattr(choices, "MOST_DIFFERENCES", len(task.ids) * len(task.images))
    assert task.score(tables).differences is not None
