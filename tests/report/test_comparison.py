"""Many models in one report: differences paired by image, the Markdown file, cards, and the plots."""

import csv
import json
import re
from html import unescape

import numpy as np
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt

from rococo_jax.report import write_report
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.comparison import compare_groups, comparison_note, left_out_lines
from rococo_jax.report.difference import Difference
from rococo_jax.report.markdown import escaped
from tests.support.made_runs import IMAGES, make_run, six_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return six_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    path, _ = write_report([runs], tmp_path_factory.mktemp("report") / "report.html")
    return path


def comparisons(*folders, **options):
    return compare_groups(group_by_fingerprint(load_results(folders)), **options)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-0.003, 0.26, "0.0 to +0.3"), (0.003, 0.26, "+0.003 to +0.3"), (-2.04, -0.0404, "−2.0 to −0.04"),
        (0.0, 0.26, "0.0 to +0.3"), (-1.0, 1.0, "−1.0 to +1.0"), (None, None, ""),
    ],
)  # fmt: skip
def test_the_end_of_an_interval_that_excludes_zero_is_not_rounded_to_zero(low, high, text):
    difference = Difference("a", "b", "rococo", "image_to_text", "clean", "r1", 51.0, 50.0, 1.0, low, high, 0.01)
    assert difference.bounds == text


def test_differences_match_the_results_and_their_queries(runs):
    found = comparisons(runs)
    assert set(found) == {(0, "image_to_text"), (0, "text_to_image")}
    for (_, task), comparison in found.items():
        runs_by_label = {run.label: run for run in comparison.runs}
        for row in comparison.rows:
            both = [runs_by_label[name].tasks[task][row.variant][row.metric] for name in (row.model, row.reference)]
            assert (row.value, row.reference_value) == tuple(both)
            ours, theirs = (abs(each - 50) for each in both) if row.metric == "blind" else both
            assert row.points == pytest.approx(ours - theirs)
            assert row.low <= row.points <= row.high
    wanted = [("task", "=", "image_to_text"), ("variant", "=", "danger")]
    folders = (runs / "family-1-model-d", found[0, "image_to_text"].reference.path.parent)
    first, best = (np.array(pq.read_table(f / "per_query.parquet", filters=wanted)["rank"]) <= 1 for f in folders)
    each = first * 1.0 - best
    assert len(each) == IMAGES
    points = {(r.model, r.variant, r.metric): r.points for r in found[0, "image_to_text"].rows}
    assert points["family-1/model-d", "danger", "r1"] == pytest.approx(100 * each.mean())


def test_a_clearly_worse_model_has_a_small_p_and_an_equal_one_a_large_p(runs):
    rows = comparisons(runs, reference="family-0/model-a")[0, "image_to_text"].rows
    p = {row.model: row.p for row in rows if (row.variant, row.metric) == ("clean", "r1")}
    assert p["family-0/model-e"] < 0.001
    assert p["family-1/model-f"] > 0.05


def test_an_unknown_reference_is_refused_with_the_available_names(runs, tmp_path, refusal):
    error = refusal("report", runs, "--out", tmp_path / "r.html", "--reference", "model-z")
    assert "--reference" in error and "family-0/model-a" in error
    assert not list(tmp_path.iterdir())


def test_rows_that_do_not_give_the_reported_numbers_are_not_compared(tmp_path):
    make_run(tmp_path / "a", "a", 0.5)
    make_run(tmp_path / "b", "b", 0.7, seed=1)
    (tmp_path / "b" / "per_query.parquet").write_bytes((tmp_path / "a" / "per_query.parquet").read_bytes())
    make_run(tmp_path / "c", "c", 0.8, seed=2)
    groups = group_by_fingerprint(load_results([tmp_path]))
    compared = compare_groups(groups)
    assert {row.model for row in compared[0, "image_to_text"].rows} == {"c"}
    (line,) = [line for line in left_out_lines(groups, compared) if "Image to text" in line]
    assert line.startswith("b: ") and line.endswith("not compared: no counts of the same queries or items")


def test_the_csv_file_contains_every_difference_with_its_values(runs, page):
    rows = list(csv.DictReader(page.with_suffix(".csv").open(encoding="utf-8", newline="")))
    found = comparisons(runs)
    compared = [row for row in rows if row["compared_with"]]
    assert len(compared) == sum(len(comparison.rows) for comparison in found.values())
    assert ("clean", "fr1") not in {(row["variant"], row["metric"]) for row in compared}
    for row in compared:
        comparison = found[0, row["task"]]
        assert row["compared_with"] == comparison.reference.label
        asked = (row["model"], row["variant"], row["metric"])
        (same,) = (r for r in comparison.rows if (r.model, r.variant, r.metric) == asked)
        ends = (same.points, same.low, same.high, same.p, same.p_corrected, same.mde)
        names = ("difference", "difference_low", "difference_high", "p", "p_corrected", "mde")
        assert [row[name] for name in names] == ["" if end is None else repr(end) for end in ends]


def test_only_the_primary_tests_of_a_task_are_corrected_together(runs):
    for comparison in comparisons(runs).values():
        primary = comparison.primary.values()
        of_altered = {(name, False) for name in ("r1", "fr1", "grounding", "blind")}
        assert {(row.metric, row.variant == "clean") for row in primary} == {("r1", True)} | of_altered
        assert {row.metric for row in comparison.rows} > {row.metric for row in primary}
        assert all(row.p <= row.p_corrected for row in primary)
        others = [row for row in comparison.rows if not row.is_primary]
        assert all(row.p_corrected is None and row.verdict is None for row in others)
        # Uncorrected intervals belong to uncorrected p, as the corrected ones do to the corrected p.
        for row, p in [*((row, row.p_corrected) for row in primary), *((row, row.p) for row in others)]:
            assert (p < 0.05) == (not row.low <= 0 <= row.high)
        assert 0 < sum(row.is_significant for row in primary) < len(primary)
        assert f"{len(primary)} of them are in this table" in comparison_note(comparison)


def test_models_are_compared_with_the_first_named_model_in_every_task(runs):
    named = ["family-1-model-d", "family-0-model-a", "family-0-model-c"]
    compared = comparisons(*(runs / name for name in named))
    assert len(compared) == 2
    assert {comparison.reference.label for comparison in compared.values()} == {"family-1/model-d"}


def tables_of(html):
    """The words of every cell, by table and row, without marks of emphasis and brackets around intervals."""
    tables = [re.findall(r"<tr.*?</tr>", each, re.DOTALL) for each in re.findall(r"<table.*?</table>", html, re.DOTALL)]
    texts = [[[words(cell) for cell in re.findall(r"<t[hd]\b.*?</t[hd]>", row, re.DOTALL)] for row in table]
             for table in tables]  # fmt: skip
    return [[row for row in table if row[0] != ""] for table in texts]  # but groups of columns


def words(html):
    return " ".join(unescape(re.sub(r"<.*?>|[(),]", " ", html)).split())


def test_the_markdown_file_has_the_tables_of_the_page(runs, page):
    markdown = page.with_suffix(".md").read_text(encoding="utf-8")
    found = tables_of(MarkdownIt("commonmark").enable("table").render(markdown))
    html = page.read_text(encoding="utf-8")
    wanted = tables_of(re.sub(r'<table class="plain">\s*<tbody>.*?</table>', "", html, flags=re.DOTALL))
    assert len(found) == len(wanted) > 15
    for one, other in zip(found, wanted, strict=True):
        assert one[1:] == other[1:] and all(name.endswith(head) for name, head in zip(one[0], other[0], strict=True))
    assert "- Source: made/family-1/model-d" in markdown.splitlines()
    assert "With and without altered items" in html and "With and without altered items" not in markdown


def test_names_cannot_break_out_of_a_markdown_table():
    assert escaped("a | b\n<script> [x](y) `c`") == r"a \| b &lt;script&gt; \[x\](y) \`c\`"


def test_the_page_has_a_card_for_each_model_and_a_point_in_every_row_of_the_plots(page):
    html = page.read_text(encoding="utf-8")
    assert html.count('class="model-card"') == 6
    assert "149,358,592: vision 86,192,640" in html
    # R@1 of the two clean galleries and of three altered ones, and FR@1 of these.
    plots = "".join(re.findall(r'<figure class="bars dots">.*?</figure>', html, re.DOTALL))
    assert plots.count("<i title=") == 6 * (2 + 3 + 3)


def test_equal_results_give_equal_bytes_including_comparisons(runs, page, tmp_path):
    write_report([runs], tmp_path / "report.html")
    for suffix in (".html", ".csv", ".md"):
        assert (tmp_path / "report.html").with_suffix(suffix).read_bytes() == page.with_suffix(suffix).read_bytes()


def test_results_under_other_conditions_are_not_compared(runs, tmp_path):
    other = tmp_path / "other"
    make_run(other, "other", 0.5)
    results = json.loads((other / "results.json").read_text())
    results["fingerprint"]["data"] = {"captions": "others"}
    (other / "results.json").write_text(json.dumps(results))
    found = comparisons(runs, other)
    assert {place for place, _ in found} == {0}
    assert "other" not in {row.model for comparison in found.values() for row in comparison.rows}
    assert np.all([len(comparison.rows) % 5 == 0 for comparison in found.values()])
