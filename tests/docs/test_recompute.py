"""The example of the documentation recomputes every number of results from the rows of queries."""

import json
import re

import pytest

from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.results import per_query_table, with_checksum, write_per_query
from rococo_jax.storage import write_json
from tests.report.test_classes import save
from tests.support.made_runs import make_run
from tests.support.paths import CHECKOUT
from tests.support.planted_winoground import planted_winoground

PAGE = (CHECKOUT / "docs/explanation/recompute.md").read_text()
EXAMPLE = re.search(r"```py\n(.*?)```", PAGE, re.DOTALL)[1]


def ranking(folder):
    make_run(folder / "out", "one", 1.0)


def choices(folder):
    planted = planted_winoground(folder / "data", {"Object": 8, "Relation": 10, "Both": 10})
    write_json(folder / "out" / "results.json", with_checksum(planted.results))
    rows = [row_table("winoground", each, planted.benchmark) for each in rows_of_outcomes(planted.outcomes)]
    write_per_query(folder / "out" / "per_query.parquet", per_query_table(rows))


def classes(folder):
    save(folder, "out", 0)
    path = folder / "out" / "results.json"
    results = json.loads(path.read_text())
    del results["tasks"]["pets_ood"], results["tasks"]["cues"]  # AUROC and shape bias
    path.write_text(json.dumps(results))


@pytest.mark.parametrize("make", [ranking, choices, classes])
def test_the_example_recomputes_every_metric(make, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLE, {})


def test_the_example_notices_a_changed_number(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    ranking(tmp_path)
    path = tmp_path / "out" / "results.json"
    results = json.loads(path.read_text())
    results["tasks"]["image_to_text"]["danger"]["drop"] += 0.01
    path.write_text(json.dumps(results))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="danger"):
        exec(EXAMPLE, {})
