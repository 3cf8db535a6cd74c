"""`per_query.parquet` gives every number of `results.json` to the last bit, and counts by image give every metric."""

from collections import defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest

from rococo_jax.evaluation.results import read_results
from rococo_jax.evaluation.stored_counts import StoredRows, read_counts
from rococo_jax.evaluation.variant_results import results_of_groups
from tests.support.made_runs import IMAGES, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), "one", 1.0)


@pytest.fixture(scope="module")
def counts(run):
    return read_counts(run / "per_query.parquet", read_results(run / "results.json"))


def test_rows_give_the_numbers_and_intervals_of_the_results(run):
    results = read_results(run / "results.json")
    rows = StoredRows(run / "per_query.parquet", results)
    names = [(task, variant) for task, variants in results["tasks"].items() for variant in variants]
    found = results_of_groups({name: rows.group(*name) for name in names})
    assert {name: dict(each.tasks) for name, each in found.items()} == {
        (task, variant): metrics for task, variants in results["tasks"].items() for variant, metrics in variants.items()
    }
    assert {name: dict(each.intervals) for name, each in found.items()} == {
        (task, name): bounds for task, variants in results["intervals"].items() for name, bounds in variants.items()
    }


def test_counts_by_image_give_every_metric_of_one_variant(run, counts):
    tasks = read_results(run / "results.json")["tasks"]
    assert counts.keys() == {(task, variant) for task in tasks for variant in tasks[task]}
    for (task, variant), each in counts.items():
        values = tasks[task][variant]
        of_two_variants = {"drop", "drop_points", *(name for name in values if name.endswith("_std"))}
        assert each.metrics.keys() == values.keys() - of_two_variants - {"hubness"}
        assert {name: each.value(name) for name in each.metrics} == pytest.approx(
            {name: values[name] for name in each.metrics}, abs=1e-9
        )


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
def test_counts_of_an_image_sum_over_its_queries_or_pairs_and_all_seeds(run, counts, file, values_of):
    sums = sums_by_image(run / f"{file}.parquet", values_of)
    for (task, variant, name, image), (value, count) in sums.items():
        each = counts[task, variant]
        unit = np.array([image], object)
        assert sum(run.entries(name, run.on(unit))[0] for run in each.runs) == count
        assert each.of(name, each.on(unit))[0] == pytest.approx(100 * value / count)
        assert len(each.units) == IMAGES and list(each.units) == sorted(each.units)
    # Two captions an image, two seeds.
    assert sums["text_to_image", "mix_0.9", "r1" if file == "per_query" else "blind", image][1] == 4


def test_hubness_can_be_computed_from_the_rows_and_has_no_interval(run, counts):
    results = read_results(run / "results.json")
    frame = pq.read_table(run / "per_query.parquet").to_pandas()
    frame["altered"] = frame.top1_kind.str.endswith("altered")
    total = 0
    for (task, variant), rows in frame.groupby(["task", "variant"]):
        first = rows.groupby(["top1_text", "altered", "seed"], dropna=False)
        shared = rows[first.image.transform("nunique") > 1]
        found = results["tasks"][task][variant]["hubness"]
        assert found == pytest.approx(100 * len(shared) / len(rows))
        total += len(shared)
        assert "hubness" not in results["intervals"][task][variant] and "hubness" not in counts[task, variant].metrics
    assert total > 0


def test_rows_have_typed_columns_for_the_fields_of_a_variant(run):
    frame = pq.read_table(run / "per_query.parquet").to_pandas()
    assert set(frame.benchmark) == {"rococo"} and set(frame.alteration) == set(frame.variant)
    assert frame[["part", "corruption", "severity"]].isna().all(axis=None)
    assert np.array_equal(frame.unit, frame.image.str[4:7].astype(int))
