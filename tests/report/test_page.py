"""The report: what the page promises whoever reads it, whatever the results hold."""

import base64
import csv
import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.evaluation.examples import Side, write_examples
from rococo_jax.report import page, write_report
from rococo_jax.report.blocks import Cell, Head, Table, render_block
from rococo_jax.report.collection import Group, Run
from rococo_jax.report.vocabulary import percent
from tests.support.pages import NASTY, VARIANTS, example, report, results_of, save, tables_of
from tests.support.refusals import refused


def test_the_page_is_well_formed_and_shows_every_model_from_best_to_worst(tmp_path):
    clean = [40.04 + (3 * place) % 8 for place in range(8)]
    for place, each in enumerate(clean):
        save(tmp_path / "all" / f"model-{place}", results_of(f"model-{place}", each))
    page = report(tmp_path, tmp_path / "all")
    assert all(f"model-{place}" in page.text("table") for place in range(8))
    assert "40.0" in page.text("td") and "47.0" in page.text("td") and "40.04" not in page.text("td")
    assert page.text("h1") == "How robust are these 8 models?"
    # Nothing is said of pairs, which these results have not.
    assert "Grounded or blind" not in page.text() and "50 is unbiased" not in page.text()
    # Cells carry numbers for sorting, with more digits than are shown.
    in_order = [str(each) for each in sorted(clean, reverse=True)]
    cells = [cell["data-value"] for cell in page.all("td") if cell.get("data-value") in in_order]
    # The leaderboard begins with the best model, the first screen has the order of the command line.
    assert cells[:24] == [*in_order, *(str(each) for each in clean), *in_order]


def last_bits_changed(value, rng):
    """JSON whose floats are up to four units in the last place away, as another processor may compute them."""
    if isinstance(value, float):
        return value + int(rng.integers(-4, 5)) * math.ulp(value)
    if isinstance(value, dict):
        return {name: last_bits_changed(each, rng) for name, each in value.items()}
    return [last_bits_changed(each, rng) for each in value] if isinstance(value, list) else value


def test_a_page_does_not_depend_on_the_last_bits_of_its_numbers(tmp_path):
    rng = np.random.default_rng(0)
    results = [results_of(f"model-{place}", clean=100 / rng.uniform(2, 3)) for place in range(4)]
    for each in results:  # no ties
        for metrics in each["tasks"]["image_to_text"].values():
            metrics["fr1"] += rng.uniform(1, 9)
    pages = []
    for folder, changed in (("one", False), ("other", True)):
        for each in results:
            save(tmp_path / folder / each["model"], last_bits_changed(each, rng) if changed else each)
        pages.append(write_report([tmp_path / folder], tmp_path / folder / "page.html")[0].read_text(encoding="utf-8"))
    assert pages[0].count("data-value") > 100
    assert pages[0] == pages[1]


def test_cells_are_sorted_by_six_more_digits_than_they_show():
    shown = np.random.default_rng(1).uniform(0.1, 99, 500).round(1)
    numbers = np.unique(np.concatenate([shown, shown + 1e-7, shown - 1e-7, -shown, [0, 1e-7, -1e-7]]))
    keys = [float(re.search(r'data-value="([^"]*)"', cell(value))[1]) for value in numbers]
    assert keys == sorted(set(keys)) and len(keys) == len(numbers)
    # Zero but for rounding is zero: a difference of two equal numbers that were computed in another order.
    assert cell(1e-15) == cell(-1e-15) == cell(0.0)


def cell(value: float) -> str:
    """A table of one number."""
    return render_block(Table("", [Head("")] * 2, [[Cell("name"), Cell(percent(value), value=float(value))]]))


def test_numbers_in_csv_equal_those_in_json_to_the_last_digit(tmp_path):
    results = [results_of("one", 1000 / 19), results_of("two", 200 / 7)]
    results[1]["tasks"]["image_to_text"]["danger"]["drop"] = None
    results[1]["intervals"]["image_to_text"]["danger"]["drop"] = None
    for each in results:
        save(tmp_path / "all" / each["model"], each)
    _, table = write_report([tmp_path / "all"], tmp_path / "report.html")
    assert table == tmp_path / "report.csv"
    rows = list(csv.DictReader(table.open(encoding="utf-8", newline="")))
    assert list(rows[0])[:6] == ["section", "model", "protocol", "task", "variant", "fingerprint"]
    found = {(row["model"], row["variant"], row["metric"]): row for row in rows}
    assert len(found) == len(rows) and {variant for _, variant, _ in found} == set(VARIANTS)
    for each in results:
        for variant, metrics in each["tasks"]["image_to_text"].items():
            for name, value in metrics.items():
                row = found[each["model"], variant, name]
                assert row["value"] == ("" if value is None else repr(value))
                interval = each["intervals"]["image_to_text"][variant].get(name) or ("", "")
                assert (row["low"], row["high"]) == tuple(map(str, interval))


def test_the_page_loads_no_external_files(tmp_path):
    nasty = example(query=Side(image="https://e.example/a"), right=Side(NASTY), wrong=Side(NASTY + " too"))
    save(tmp_path / "one", results_of(NASTY), examples=[nasty])
    page = report(tmp_path, tmp_path / "one")
    for _, attributes in page.elements:
        for name in ("src", "srcset", "data", "action", "poster", "xlink:href"):
            assert (attributes.get(name) or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith(("#", "./report.csv"))
        assert not any(name.startswith("on") for name in attributes)
    styles = page.text("style")
    assert "@import" not in styles and "url(" not in styles and "@font-face" not in styles
    assert not page.all("link") and not page.all("iframe")
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    script = re.search("<script>(.*?)</script>", (tmp_path / "report.html").read_text(encoding="utf-8"), re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_captions_and_names_with_markup_are_shown_as_text(tmp_path):
    nasty = results_of(NASTY)
    nasty["tasks"]["image_to_text"]["<b>variant</b>"] = nasty["tasks"]["image_to_text"]["danger"] | {"<i>metric": 1.0}
    nasty["notes"] = ["</ul><script>alert(2)</script>"]
    nasty["data"] = {"rococo": {"images": "/no/where", "annotations": "</dl><script>"}}
    nasty["fingerprint"]["data"]["rococo"]["</td>"] = "\x00 nought, \ufffe none"
    right, wrong = Side(NASTY + " \x00\x1b"), Side("</bdi></script>" + NASTY, note=NASTY)
    query = Side(NASTY, image="../../etc/<b>secret", jpeg=b"no picture")
    save(tmp_path / "one", nasty, examples=[example(query=query, right=right, wrong=wrong)])
    page = report(tmp_path, tmp_path / "one")
    assert len(page.all("script")) == 1 and len(page.all("style")) == 1
    assert not [image for image in page.all("img") if not (image["src"] or "").startswith("data:image/jpeg;base64,")]
    assert "<script>alert('x')</script>" in page.text("h1")
    assert "<i>metric" in page.text("table") and "</ul><script>alert(2)</script>" in page.text()
    assert NASTY.split(" ")[0] in page.text("article")
    assert "\x00" not in page.text() and "\x1b" not in page.text()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, None),
        ({"protocol": "strict"}, "protocol"),
        ({"versions": {"jax": "0.11.0", "numpy": "3.0", "device": "TPU v5 lite"}}, None),
        ({"flags": {"matmul_precision": "bfloat16"}}, "flags.matmul_precision"),
        ({"data": {"rococo": {"captions": "aa", "images": "other"}}}, "data.rococo.images"),
        ({"data": {"rococo": {"captions": "aa", "images": "bb", "more": 1}}}, "data.rococo.more"),
    ],
)
def test_results_share_a_table_unless_they_differ_in_more_than_the_model(tmp_path, change, field):
    first, other = results_of("alpha-32"), results_of("beta-16")
    other["fingerprint"] |= change
    other["protocol"] = other["fingerprint"]["protocol"]
    save(tmp_path / "all" / "1", first)
    save(tmp_path / "all" / "2", other)
    page = report(tmp_path, tmp_path / "all")
    tables = tables_of(page)
    assert any("52.3" in table for table in tables)
    assert any("alpha-32" in table and "beta-16" in table for table in tables) == (field is None)
    assert field is None or any(field in table and "Section 1" in table for table in tables)
    assert ("Not comparable with section 1" in page.text()) == (field is not None)


@pytest.mark.parametrize("present", [281, 5000])
def test_a_reduced_gallery_is_mentioned_before_any_number(tmp_path, present):
    coverage = {"present": present, "wanted": 5000, "complete": present == 5000}
    data = {"image_count": present, "caption_count": 5 * present + 10, "coverage": coverage}
    text = report(tmp_path, save(tmp_path / "one", results_of("one", data={"rococo": data}))).text()
    if present == 5000:
        assert "not comparable" not in text.lower() and "25,010" in text
    else:
        assert "281 of the 5,000 images" in text
        assert 0 <= text.find("Not comparable with results on all images.") < text.index("52.3")


def test_the_drop_is_marked_as_our_metric_and_recall_as_that_of_the_benchmark(tmp_path):
    save(tmp_path / "one", results_of("one"))
    formulas = next(
        table for table in tables_of(report(tmp_path, tmp_path / "one")) if "Source of the formula" in table
    )
    words = " ".join(formulas.split())
    assert re.search(r"Drop 100 × [^[]*? our definition", words)
    assert re.search(r"R@1 share of queries[^.]*? benchmark's code", words)


def test_unknown_variants_metrics_and_spreads_over_seeds_are_shown(tmp_path):
    results = results_of("one")
    metrics = results["tasks"]["image_to_text"]["danger"]
    results["tasks"]["text_to_image"] = {
        "clean": dict(results["tasks"]["image_to_text"]["clean"]),
        "mix_0.9": metrics | {"r1_std": 0.44, "notes": "text", "nested": {"x": 1}, "flag": True},
        **{f"gaussian_noise_{severity}": dict(metrics) for severity in range(1, 10)},
    }
    save(tmp_path / "all" / "1", results)
    save(tmp_path / "all" / "2", results_of("two"))
    page = report(tmp_path, tmp_path / "all")
    assert "Mix 0.9" in page.text("table") and "Gaussian noise 9" in page.text("table")
    assert "sd 0.4" in page.text("table")
    assert "median rank" in page.text("table")


def test_missing_values_are_shown_as_a_dash_and_a_gain_as_a_negative_drop(tmp_path):
    results = results_of("one")
    results["tasks"]["image_to_text"]["danger"] |= {"drop": -12.5, "drop_points": -6.0}
    page = report(tmp_path, save(tmp_path / "one", results))
    assert "−12.5" in page.text("table")
    widths = re.findall(r"width: ([-\d.]+)%", " ".join(bar.get("style", "") for bar in page.all("i")))
    assert widths and all(float(width) >= 0 for width in widths)
    del results["tasks"]["image_to_text"]["clean"]
    results["intervals"] = {}
    for metrics in results["tasks"]["image_to_text"].values():
        metrics |= {"drop": None, "drop_points": None}
    page = report(tmp_path, save(tmp_path / "one", results))
    assert "Same concept" in page.text("table")
    assert "95 % interval 4" not in page.text()


def test_the_same_results_give_the_same_bytes_and_are_shown_once(tmp_path):
    folder = save(tmp_path / "all" / "one", results_of("one"))
    write_report([tmp_path / "all", folder, folder / "results.json"], tmp_path / "report.html")
    files = [tmp_path / f"report.{suffix}" for suffix in ("html", "csv")]
    first = [file.read_bytes() for file in files]
    write_report([folder], tmp_path / "report.html")
    assert first == [file.read_bytes() for file in files]
    # Two models of one name are told apart.
    save(tmp_path / "all" / "after", results_of("one"))
    words = report(tmp_path, tmp_path / "all").text("table")
    assert "one (one)" in words and "one (after)" in words


def test_results_without_examples_have_charts_and_a_sentence_that_explains_it(tmp_path):
    save(tmp_path / "all" / "whole", results_of("whole"), examples=[example()])
    save(tmp_path / "all" / "scored", results_of("scored"))
    (tmp_path / "all" / "scored" / "per_query.parquet").unlink()
    page = report(tmp_path, tmp_path / "all")
    assert "scored" in page.text("table") and len(page.all("article")) == 1
    assert page.text("p").count("no examples, because there is no examples.parquet beside the results of scored") == 1


@pytest.mark.thorough
def test_a_page_of_twenty_models_has_a_reasonable_size(tmp_path):
    for place in range(20):
        save(tmp_path / "all" / f"{place:02}", results_of(f"family/model-{place}", 30 + place))
    report(tmp_path, tmp_path / "all")
    assert (tmp_path / "report.html").stat().st_size < 1_500_000  # without pictures: tables and charts alone


def change_results(folder: Path, **parts):
    (folder / "results.json").write_text(json.dumps(results_of("one") | parts))


def cut_file(folder: Path, name: str, source: str = ""):
    write_examples(folder, [example()])
    (folder / name).write_bytes((folder / (source or name)).read_bytes()[:-40])


BROKEN = {
    "results cut short": (lambda folder: cut_file(folder, "results.json"), "JSON"),
    "no results": (lambda folder: (folder / "results.json").unlink(), "results"),
    "table cut short": (lambda folder: cut_file(folder, "per_query.parquet"), "per_query.parquet"),
    "examples cut short": (lambda folder: cut_file(folder, "examples.parquet"), "examples.parquet"),
    "table without its columns": (
        lambda folder: pq.write_table(pa.table({"task": ["image_to_text"]}), folder / "per_query.parquet"), "columns",
    ),
    "no tasks": ({"tasks": None}, "tasks"),
    "a task that is a list": ({"tasks": {"image_to_text": [1]}}, "image_to_text"),
    "an interval of three": (
        {"intervals": {"image_to_text": {"clean": {"r1": [1, 2, 3]}}}}, "intervals: image_to_text: clean: r1",
    ),
    "intervals that are a list": ({"intervals": {"image_to_text": []}}, "intervals"),
    "fingerprint that is text": ({"fingerprint": "x"}, "fingerprint"),
    "text that is no text": ({"notes": ["\ud800"]}, "U+D800"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_bad_results_are_refused_in_one_line_and_nothing_is_written(tmp_path, refusal, what):
    spoil, named = BROKEN[what]
    folder = save(tmp_path / "one", results_of("one"))
    change_results(folder, **spoil) if isinstance(spoil, dict) else spoil(folder)
    save(tmp_path / "two", results_of("two"))
    said = refusal("report", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "out" / "report.html").strip()
    assert "\n" not in said and named in said and "Traceback" not in said
    assert not list(tmp_path.glob("out/*"))


def test_missing_sources_and_outputs_that_are_not_a_page_are_refused(tmp_path):
    folder = save(tmp_path / "one", results_of("one"))
    refused("nothing there", write_report, [tmp_path / "missing"], tmp_path / "report.html")
    with pytest.raises(InputError, match=r"without results\.json"):
        write_report([(tmp_path / "empty").mkdir() or tmp_path / "empty"], tmp_path / "report.html")
    refused("`out`: found", write_report, [folder], tmp_path / "report.csv")
    refused("at least one", write_report, [], tmp_path / "report.html")


def test_the_command_writes_both_files_and_prints_their_paths(tmp_path, capsys):
    folder = save(tmp_path / "one", results_of("one"))
    assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 0
    assert str(tmp_path / "r.html") in capsys.readouterr().out
    assert (tmp_path / "r.html").exists() and (tmp_path / "r.csv").exists()


def test_a_message_reports_results_that_were_given_twice(tmp_path):
    """Evaluate one model alone, and later together with another one into the same folder."""
    folders = [save(tmp_path / name, results_of(name[0])) for name in ("a", "b")]
    shutil.copytree(folders[0], tmp_path / "a again")
    write_report([tmp_path], tmp_path / "report.html")
    assert "a (a), a (a again): the same results of the same model, 2 times" in (tmp_path / "report.md").read_text()
    write_report(folders, tmp_path / "report.html")
    assert "the same results" not in (tmp_path / "report.md").read_text()


def test_notes_name_the_models_that_they_apply_to():
    def run(label, *notes):
        return Run(label, Path(label), {"notes": [*notes], "data": {}})

    of_all = Group((run("a", "one", "two", "two"), run("b", "two"), run("c", "one", "two")), ())
    assert page.notes(of_all).lines == ["a, c: one", "two"]
    assert page.notes(Group((run("a", "one"),), ())).lines == ["one"] and page.notes(Group((run("a"),), ())) is None


def test_equal_numbers_of_all_models_have_no_range(tmp_path):
    for name in ("one", "other"):
        save(tmp_path / name, results_of(name))
    words = report(tmp_path, tmp_path).text()
    assert "FR@1 is the same for both models." in words and "ranges from" not in words
