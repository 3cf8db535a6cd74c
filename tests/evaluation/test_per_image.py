"""The hits of each image are those of the queries, and give every share of the results."""

from collections import defaultdict

import pyarrow.parquet as pq
import pytest

from rococo_jax.evaluation.per_image import read_image_hits
from rococo_jax.evaluation.results import read_results
from rococo_jax.metrics import METRICS
from tests.support.made_runs import IMAGES, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), "one", 1.0)


def test_hits_give_every_share_of_the_results(run):
    hits, tasks = read_image_hits(run / "per_image.parquet"), read_results(run / "results.json")["tasks"]
    assert hits.keys() == {(task, variant) for task in tasks for variant in tasks[task]}
    for (task, variant), metrics in hits.items():
        figures = tasks[task][variant]
        no_share = {"r_mean", "drop", "drop_points", *(name for name in figures if name.endswith("_std"))}
        assert metrics.keys() == figures.keys() - no_share
        assert all(METRICS[name].is_share for name in metrics)
        for name, each in metrics.items():
            assert 100 * each.hits.sum() / each.queries.sum() == pytest.approx(figures[name], abs=1e-9), name


def sums_by_image(file, values_of):
    """(task, variant, metric, image) -> its sum over the rows of a table, and their number."""
    sums = defaultdict(lambda: [0.0, 0])
    for row in pq.read_table(file).to_pylist():
        for name, value in values_of(row).items():
            both = sums[row["task"], row["variant"], name, row["image"]]
            both[0], both[1] = both[0] + value, both[1] + 1
    return sums


def hits_of_query(row):
    return {"r1": row["rank"] <= 1, "r5": row["rank"] <= 5, "fr1": row["top1_kind"].endswith("altered")}


def shares_of_pair(row):
    return {name: row[name] for name in ("blind", "grounding", "preference")}


@pytest.mark.parametrize(("file", "values_of"), [("per_query", hits_of_query), ("pairs", shares_of_pair)])
def test_hits_of_an_image_are_those_of_its_queries_or_pairs_over_all_seeds(run, file, values_of):
    hits, sums = read_image_hits(run / "per_image.parquet"), sums_by_image(run / f"{file}.parquet", values_of)
    for (task, variant, name, image), (value, count) in sums.items():
        each = hits[task, variant][name]
        place = each.images.index(image)
        assert (each.hits[place], each.queries[place]) == (pytest.approx(value), count)
        assert len(each.images) == IMAGES and list(each.images) == sorted(each.images)
    # Two captions an image, two seeds.
    assert sums["text_to_image", "mix_0.9", "r1" if file == "per_query" else "blind", image][1] == 4
