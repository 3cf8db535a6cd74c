"""The declared headline in the page, its Markdown, the CSV, the terminal, comparisons, correlations and sweeps."""

import csv
import io
import re

import pytest
import rich.console

from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.results import PER_QUERY, per_query_table, with_checksum, write_per_query
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.evaluation.summary import print_summary
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.comparison import compare_groups
from rococo_jax.report.correlations import correlate_runs
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.verdicts import verdict_rows
from rococo_jax.report.vocabulary import Place
from rococo_jax.storage import write_json
from rococo_jax.sweep.collect import Row, coverage_of, estimates_of_task, summary_columns
from tests.support.pages import Page, report
from tests.support.planted_winoground import planted_winoground

# More right of all items, and fewer in the mean over parts, than the other.
MORE_ITEMS, MORE_PARTS = {"Object": 20, "Relation": 30, "Both": 1}, {"Object": 8, "Relation": 10, "Both": 10}


def saved(folder, planted):
    folder.mkdir(parents=True)
    write_json(folder / "results.json", with_checksum(planted.results))
    rows = [row_table("winoground", each, planted.benchmark) for each in rows_of_outcomes(planted.outcomes)]
    write_per_query(folder / PER_QUERY, per_query_table(rows))
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for name, right in (("items", MORE_ITEMS), ("parts", MORE_PARTS)):
        saved(folder / "all" / name, planted_winoground(folder / "data", right, name=name))
    return folder


@pytest.fixture(scope="module")
def runs(two):
    (group,) = group_by_fingerprint(load_results([two / "all"]))
    return group.runs


def printed(results, monkeypatch) -> str:
    written = io.StringIO()
    original = rich.console.Console
    monkeypatch.setattr(rich.console, "Console", lambda width=None: original(file=written, width=width))
    print_summary(results)
    return written.getvalue()


def test_a_number_is_printed_with_the_same_digits_everywhere(tmp_path, monkeypatch):
    planted = planted_winoground(tmp_path / "data", MORE_PARTS)
    folder = saved(tmp_path / "m", planted)
    page = report(tmp_path, folder)
    markdown = (tmp_path / "report.md").read_text()
    low, high = planted.results["intervals"]["winoground"]["all"]["group_score"]
    interval = f"{low:.1f} to {high:.1f}"
    assert f"Accuracy, all items 7.0 % 95 % interval {interval}" in page.text()
    assert "Headline: Group score, All (main results of the paper: all 400 items (arXiv 2204.03162))." in page.text("p")
    rows = [line for line in markdown.splitlines() if re.match(r"\| (All|Mean|Object|Relation|Both) ", line)]
    assert [row.split()[1] for row in rows] == ["All", "Mean", "Object", "Relation", "Both"]
    assert rows[0].startswith(f"| All | 7.0 ({low:.1f}–{high:.1f}) |") and rows[1].startswith("| Mean | 16.1 (")
    with (tmp_path / "report.csv").open(newline="") as file:
        numbers = [row for row in csv.DictReader(file) if row["metric"] == "group_score"]
    assert [row["variant"] for row in numbers] == ["all", "mean", "object", "relation", "both"]
    assert [float(numbers[0][end]) for end in ("value", "low", "high")] == [7.0, low, high]
    text = printed([planted.results], monkeypatch)
    lines = [line.split() for line in text.splitlines() if "winoground" in line and "humans" not in line]
    (of_all,) = (line for line in lines if "all" in line)
    assert of_all[-6:] == ["all", "7.0", f"{low:.1f}-{high:.1f}", "7.0", "7.0", "0.0"]
    # The headline leads, in the terminal, too.
    assert [line[-6] for line in lines] == ["all", "mean", "object", "relation", "both"]


def test_names_of_pooled_variants_state_how_many_parts_are_present(tmp_path, monkeypatch):
    planted = planted_winoground(tmp_path / "data", {"Object": 8, "Both": 10}, items={"Object": 141, "Both": 26})
    page = report(tmp_path, saved(tmp_path / "m", planted))
    markdown = (tmp_path / "report.md").read_text()
    for text in (page.text(), markdown.replace("\\", "")):
        assert "All (2 of 3 parts)" in text and "Mean (2 of 3 parts)" in text and "Object (" not in text
    terminal = printed([planted.results], monkeypatch)
    assert "all (2 of 3 parts)" in terminal and "mean (2 of 3 parts)" in terminal
    assert set(planted.results["tasks"]["winoground"]) == {"all", "mean", "object", "both"}
    phrase = " (2 of 3 parts)"
    assert coverage_of(planted.results) == {("winoground", name): phrase for name in ("all", "mean")}


def test_models_are_ranked_by_the_declared_headline(two, runs):
    assert [run.label for run in ordered(runs, "winoground")] == ["items", "parts"]
    means = {run.label: run.estimate("winoground", "mean", "group_score").value for run in runs}
    assert means["items"] < means["parts"]
    report(two, two / "all")
    board = (two / "report.md").read_text().split("### Results")[1].split("<details>")[0]
    assert board.index("| items |") < board.index("| parts |")


def test_the_headline_is_the_primary_difference(two, runs):
    (group,) = group_by_fingerprint(load_results([two / "all"]))
    rows = verdict_rows(compare_groups([group], "parts"))
    assert [(row.variant, row.metric) for row in rows] == [("all", "group_score")]
    assert rows[0].points == pytest.approx(100 * (51 - 28) / 400)
    assert "coverage" not in rows[0].as_json()


def test_a_mean_over_parts_is_compared_like_any_other_variant(two, tmp_path):
    for name, right in (("items", MORE_ITEMS), ("parts", MORE_PARTS)):
        planted = planted_winoground(two / "data", right, name=name)
        planted.results["headlines"]["winoground"] |= {"variant": "mean", "pooling": "parts"}
        saved(tmp_path / name, planted)
    groups = group_by_fingerprint(load_results([tmp_path]))
    (row,) = verdict_rows(compare_groups(groups, "parts"))
    first, other = (run.estimate("winoground", "mean", "group_score").value for run in groups[0].runs)
    assert (row.variant, row.model) == ("mean", "items") and row.points == pytest.approx(first - other)
    assert row.low < row.points < row.high and 0 < row.p_corrected < 1 and row.mde > 0


def test_correlations_and_sweeps_use_the_headline(two, runs):
    results = [run.results for run in runs]
    counts = [read_counts(run.path.parent / PER_QUERY, run.results) for run in runs]
    figures = estimates_of_task(results, counts, "winoground")
    row = Row("", (1,), (0, 1), {}, {}, {"winoground": figures}, results)
    assert summary_columns([row]) == [("winoground", "all", "group_score")]
    assert figures["all"]["group_score"].has_interval and figures["mean"]["group_score"].has_interval
    assert section_of(runs, "winoground").lead == ("all", "group_score")


def test_correlations_are_of_the_headline(two, tmp_path):
    for right in range(5):
        planted = planted_winoground(two / "data", MORE_PARTS | {"Object": right}, name=f"m{right}")
        planted.results["tasks"]["winoground"]["all"]["grounding"] = 50.0 + right**2
        saved(tmp_path / str(right), planted)
    (group,) = group_by_fingerprint(load_results([tmp_path]))
    places = correlate_runs(group.runs).places
    assert places == (Place("winoground", "all", "group_score"), Place("winoground", "all", "grounding"))


def test_the_page_is_valid(two):
    report(two, two / "all")
    assert Page((two / "report.html").read_text()).all("table")
