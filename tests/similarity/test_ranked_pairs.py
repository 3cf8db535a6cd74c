"""Ranks and differences in one visit: the bits of the two counted apart."""

import dataclasses

import jax
import numpy as np
import pytest

from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import difference_statistics, rank_and_difference_statistics, rank_statistics

# Two tiles of queries, of the width of the other files, whose compiled programs are kept.
IMAGES, WIDTH = 700, 16


@pytest.fixture(scope="module")
def made():
    """Images with one to three originals, most with an altered copy, in no order; vectors of which some are equal."""
    generator = np.random.default_rng(0)
    group = np.repeat(np.arange(IMAGES), generator.integers(1, 4, IMAGES)) * 3
    copied = np.flatnonzero(generator.random(len(group)) < 0.9)
    order = generator.permutation(len(group) + len(copied))
    place = np.argsort(order)
    both = np.concatenate([group, group[copied]])[order]
    altered = np.concatenate([np.zeros(len(group), bool), np.ones(len(copied), bool)])[order]
    origin = np.concatenate([np.full(len(group), -1), place[copied]])[order]
    mixed_in = np.where(altered & (generator.random(len(both)) < 0.5), generator.integers(0, IMAGES, len(both)) * 3, -1)
    queries = generator.integers(-1, 2, (IMAGES, WIDTH)).astype(np.float32) / 3
    gallery = generator.integers(-1, 2, (len(both), WIDTH)).astype(np.float32) / 7
    groups = {"query_group": np.arange(IMAGES) * 3, "gallery_group": both, "gallery_altered": altered}
    return queries, gallery, groups, {"gallery_origin": origin, "gallery_mixed_in": mixed_in}


@pytest.fixture(scope="module")
def apart(made):
    queries, gallery, groups, origins = made
    altered = np.flatnonzero(groups["gallery_altered"])
    differences = difference_statistics(
        queries,
        gallery,
        gallery,
        right_rows=origins["gallery_origin"][altered],
        wrong_rows=altered,
        query_group=groups["query_group"],
        pair_group=groups["gallery_group"][altered],
        also_shown_in=origins["gallery_mixed_in"][altered],
    )
    return rank_statistics(queries, gallery, **groups), differences


@pytest.mark.parametrize("device_count", [1, 2, 8])
def test_the_same_bits_as_apart_on_one_to_eight_devices(made, apart, device_count):
    queries, gallery, groups, origins = made
    mesh = make_mesh(jax.devices()[:device_count])
    for found, expected in zip(
        rank_and_difference_statistics(queries, gallery, **groups, **origins, mesh=mesh), apart, strict=True
    ):
        for field in dataclasses.fields(expected):
            one, other = (np.asarray(getattr(each, field.name)) for each in (found, expected))
            assert one.tobytes() == other.tobytes(), field.name


def test_captions_asked_about_their_one_image_and_its_copy(made):
    queries, gallery, *_ = made
    captions, images = gallery[:900], queries[:600]
    owner, image = np.arange(900) % 300, np.arange(600) % 300
    asked = {"query_group": owner, "gallery_group": image, "gallery_altered": np.arange(600) >= 300}
    origin = np.where(np.arange(600) < 300, -1, image)
    ranks, differences = rank_and_difference_statistics(captions, images, **asked, gallery_origin=origin)
    pairs = {"query_group": owner, "pair_group": np.arange(300)}
    expected = difference_statistics(captions, images[:300], images[300:], **pairs)
    assert len(differences) == 900
    np.testing.assert_array_equal(differences.below, expected.below)
    np.testing.assert_array_equal(ranks.higher, rank_statistics(captions, images, **asked).higher)


def test_two_copies_of_one_original_are_refused(made):
    queries, gallery, groups, origins = made
    origin = origins["gallery_origin"].copy()
    altered = np.flatnonzero(origin >= 0)
    origin[altered[0]] = origin[altered[1]]
    with pytest.raises(ValueError, match="without an original of their own"):
        rank_and_difference_statistics(queries, gallery, **groups, gallery_origin=origin)
