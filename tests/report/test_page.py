"""The report: what the page promises whoever reads it, whatever the results hold."""

import copy
import csv
import dataclasses
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.cli.main import main
from rococo_jax.data.images import FileImages
from rococo_jax.errors import InputError
from rococo_jax.evaluation.examples import Example, Side, collect_examples, write_examples
from rococo_jax.evaluation.results import make_fingerprint, make_results, per_query_table, write_per_query
from rococo_jax.report import page, write_report
from rococo_jax.report.collection import Group, Run
from rococo_jax.storage import write_json
from tests.support.made_runs import unit
from tests.support.refusals import refused

VOID = {"meta", "img", "br", "input", "link", "col"}
NASTY = "<script>alert('x')</script> & \"quotes\" <img src=http://evil.example/x onerror=alert(1)> \u202eright to left"
VARIANTS = ("clean", "same_concept", "danger")


class Page(html.parser.HTMLParser):
    """Reads a page strictly: every element closed, in order; collects elements, their text, and what would load."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[tuple[str, ...], str]] = []
        self.feed(source)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        assert len(attributes) == len(dict(attributes)), f"an attribute twice in <{tag}>"
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.words.append((tuple(self.open), data))

    def text(self, inside: str | None = None) -> str:
        parts = [data for path, data in self.words if (inside in path if inside else not {"style", "script"} & {*path})]
        return " ".join(" ".join(parts).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def results_of(model: str, clean: float = 52.34567, **changed) -> dict:
    """Results as `rococo evaluate` writes them, with one more metric than it knows."""
    tasks = {"image_to_text": {}}
    for place, variant in enumerate(VARIANTS):
        r1 = clean - 4.1 * place
        metrics = {"r1": r1, "r5": r1 + 20.25, "r10": r1 + 30.5, "r_mean": r1 + 50.75 / 3, "fr1": 7.7 * place}
        metrics |= {"top1_own": r1, "top1_own_altered": 5.5 * place, "top1_other_altered": 2.2 * place}
        metrics |= {"top1_other": 100 - r1 - 7.7 * place, "median_rank": 3.0 + place}
        if place:
            metrics |= {"drop": 100 * (clean - r1) / clean, "drop_points": clean - r1}
        tasks["image_to_text"][variant] = metrics
    intervals = {
        task: {v: {name: [x - 3.3, x + 3.1] for name, x in m.items() if name != "median_rank"} for v, m in each.items()}
        for task, each in tasks.items()
    }
    fingerprint = {
        "model": {"weights": model},
        "data": {"rococo": {"captions": "aa", "images": "bb"}},
        "protocol": "paper",
        "versions": {"jax": "0.10.2"},
    }
    made = {"format": "rococo_jax.results", "version": 2, "model": model, "protocol": "paper"}
    made |= {"fingerprint": fingerprint, "tasks": tasks, "intervals": intervals, "kinds": dict.fromkeys(tasks, "rank")}
    return copy.deepcopy(made) | changed


def row(**changed) -> dict:
    made = {"task": "image_to_text", "variant": "danger", "query": 0, "image": "a.jpg", "caption": "a man on a bench"}
    made |= {"rank": 2, "rank_optimistic": 2, "rank_pessimistic": 2, "top1_kind": "own_altered"}
    return made | {"top1_text": "a criminal on a bench", "top1_score": 0.31, "positive_score": 0.25} | changed


def example(**changed) -> Example:
    """An image whose first choice was an altered caption."""
    sides = {"query": Side(image="a.jpg"), "right": Side("a man on a bench"), "wrong": Side("a criminal on a bench")}
    made = {"task": "image_to_text", "variant": "danger", "seed": None, "role": "error", "order": 0}
    made |= {"kind": "own_altered", "right_score": 0.25, "wrong_score": 0.31}
    return Example(**(made | sides | changed))


def save(folder: Path, results: dict, rows: list[dict] | None = None, examples: list[Example] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results))
    pq.write_table(pa.Table.from_pylist(rows or [row()]), folder / "per_query.parquet")
    if examples is not None:
        write_examples(folder, examples)
    return folder


def report(tmp_path: Path, *sources: Path) -> Page:
    return Page(write_report(sources, tmp_path / "report.html")[0].read_text(encoding="utf-8"))


def test_page_is_well_formed_and_shows_every_model_with_one_decimal(tmp_path):
    for place in range(8):
        save(tmp_path / "all" / f"model-{place}", results_of(f"model-{place}", 40.04 + place))
    page = report(tmp_path, tmp_path / "all")
    assert all(f"model-{place}" in page.text("table") for place in range(8))
    assert "40.0" in page.text("td") and "47.0" in page.text("td")
    assert "40.04" not in page.text("td")
    assert page.text("h1") == "How robust are these 8 models?"


def test_rows_come_best_clean_recall_first_and_cells_carry_exact_numbers_for_sorting(tmp_path):
    for name, clean in (("worst", 20.125), ("best", 60.5), ("middle", 40.25)):
        save(tmp_path / "all" / name, results_of(name, clean))
    page = report(tmp_path, tmp_path / "all")
    cells = [cell["data-value"] for cell in page.all("td") if "data-value" in cell]
    assert [cell for cell in dict.fromkeys(cells) if cell in ("20.125", "60.5", "40.25")] == ["60.5", "40.25", "20.125"]


def test_csv_numbers_are_the_json_numbers_to_the_last_digit(tmp_path):
    results = [results_of("one", 1000 / 19), results_of("two", 200 / 7)]
    results[1]["tasks"]["image_to_text"]["danger"]["drop"] = None
    results[1]["intervals"]["image_to_text"]["danger"]["drop"] = None
    for each in results:
        save(tmp_path / "all" / each["model"], each)
    _, table = write_report([tmp_path / "all"], tmp_path / "report.html")
    assert table == tmp_path / "report.csv"
    rows = list(csv.DictReader(table.open(encoding="utf-8", newline="")))
    found = {(row["model"], row["variant"], row["metric"]): row for row in rows}
    assert len(found) == len(rows) and {variant for _, variant, _ in found} == set(VARIANTS)
    for each in results:
        for variant, metrics in each["tasks"]["image_to_text"].items():
            for name, value in metrics.items():
                row = found[each["model"], variant, name]
                assert row["value"] == ("" if value is None else repr(value))
                interval = each["intervals"]["image_to_text"][variant].get(name) or ("", "")
                assert (row["low"], row["high"]) == tuple(map(str, interval))


def test_nothing_is_loaded_from_anywhere(tmp_path):
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


def test_captions_and_names_stay_text_whatever_they_hold(tmp_path):
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
    assert "<i>metric" in page.text("table")
    assert NASTY.split(" ")[0] in page.text("article")
    assert "\x00" not in page.text() and "\x1b" not in page.text()


def test_scripts_hash_in_the_policy_is_that_of_the_script(tmp_path):
    import base64
    import hashlib

    save(tmp_path / "one", results_of("one"))
    source = write_report([tmp_path / "one"], tmp_path / "report.html")[0].read_text(encoding="utf-8")
    script = re.search("<script>(.*?)</script>", source, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in source


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"protocol": "strict"}, "protocol"),
        ({"versions": {"jax": "0.11.0"}}, "versions.jax"),
        ({"data": {"rococo": {"captions": "aa", "images": "other"}}}, "data.rococo.images"),
        ({"data": {"rococo": {"captions": "aa", "images": "bb", "more": 1}}}, "data.rococo.more"),
    ],
)
def test_results_that_differ_in_more_than_the_model_never_share_a_table(tmp_path, change, field):
    first, other = results_of("alpha-32"), results_of("beta-16")
    other["fingerprint"] |= change
    other["protocol"] = other["fingerprint"]["protocol"]
    save(tmp_path / "all" / "1", first)
    save(tmp_path / "all" / "2", other)
    page = report(tmp_path, tmp_path / "all")
    tables = tables_of(page)
    assert any("52.3" in table for table in tables)
    assert not any("alpha-32" in table and "beta-16" in table for table in tables)
    assert any(field in table and "Section 1" in table for table in tables)
    assert "Not comparable with section 1" in page.text()


def test_results_that_differ_in_the_model_alone_share_a_table(tmp_path):
    save(tmp_path / "all" / "1", results_of("alpha-32"))
    save(tmp_path / "all" / "2", results_of("beta-16"))
    page = report(tmp_path, tmp_path / "all")
    assert any("alpha-32" in table and "beta-16" in table for table in tables_of(page))
    assert "Not comparable" not in page.text()


def tables_of(page: Page) -> list[str]:
    """The text of every table, found by how deep and when the parser saw it."""
    tables, inside = [], False
    for path, data in page.words:
        if "table" in path and not inside:
            tables.append("")
        inside = "table" in path
        if inside:
            tables[-1] += " " + data
    return tables


def test_a_shrunken_gallery_is_said_before_any_number(tmp_path):
    data = {"image_count": 281, "caption_count": 1405, "coverage": {"present": 281, "wanted": 5000, "complete": False}}
    save(tmp_path / "one", results_of("one", data={"rococo": data}))
    text = report(tmp_path, tmp_path / "one").text()
    warning = "Not comparable with figures on all images."
    assert warning in text and "281 of the 5,000 images" in text
    assert text.index(warning) < text.index("52.3")


def test_a_whole_gallery_carries_no_warning(tmp_path):
    data = {
        "image_count": 5000,
        "caption_count": 25010,
        "coverage": {"present": 5000, "wanted": 5000, "complete": True},
    }
    save(tmp_path / "one", results_of("one", data={"rococo": data}))
    text = report(tmp_path, tmp_path / "one").text()
    assert "not comparable" not in text
    assert "25,010" in text


def test_drop_is_marked_as_ours_and_recall_as_the_benchmarks(tmp_path):
    save(tmp_path / "one", results_of("one"))
    formulas = next(table for table in tables_of(report(tmp_path, tmp_path / "one")) if "Formula" in table)
    words = " ".join(formulas.split())
    assert re.search(r"Drop 100 × [^[]*? ours", words)
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


def test_a_missing_clean_run_or_interval_leaves_a_dash(tmp_path):
    results = results_of("one")
    del results["tasks"]["image_to_text"]["clean"]
    results["intervals"] = {}
    for metrics in results["tasks"]["image_to_text"].values():
        metrics |= {"drop": None, "drop_points": None}
    page = report(tmp_path, save(tmp_path / "one", results))
    assert "Same concept" in page.text("table")
    assert "95 % interval 4" not in page.text()


def test_figures_that_got_better_under_alteration_are_drawn_to_the_left(tmp_path):
    results = results_of("one")
    results["tasks"]["image_to_text"]["danger"] |= {"drop": -12.5, "drop_points": -6.0}
    page = report(tmp_path, save(tmp_path / "one", results))
    assert "−12.5" in page.text("svg")
    assert all(float(box["width"]) >= 0 for box in page.all("rect"))


def test_the_same_results_give_the_same_bytes_and_are_counted_once(tmp_path):
    folder = save(tmp_path / "all" / "one", results_of("one"))
    write_report([tmp_path / "all", folder, folder / "results.json"], tmp_path / "report.html")
    first = (tmp_path / "report.html").read_bytes(), (tmp_path / "report.csv").read_bytes()
    write_report([folder], tmp_path / "report.html")
    assert first == ((tmp_path / "report.html").read_bytes(), (tmp_path / "report.csv").read_bytes())


def test_two_models_of_one_name_are_told_apart(tmp_path):
    save(tmp_path / "all" / "before", results_of("clip"))
    save(tmp_path / "all" / "after", results_of("clip"))
    page = report(tmp_path, tmp_path / "all")
    assert "clip (before)" in page.text("table") and "clip (after)" in page.text("table")


def test_results_without_examples_have_figures_and_one_sentence_says_why(tmp_path):
    save(tmp_path / "all" / "whole", results_of("whole"), examples=[example()])
    save(tmp_path / "all" / "scored", results_of("scored"))
    (tmp_path / "all" / "scored" / "per_query.parquet").unlink()
    page = report(tmp_path, tmp_path / "all")
    assert "scored" in page.text("table") and len(page.all("article")) == 1
    assert page.text("p").count("beside the results of scored, hence no examples") == 1


@pytest.mark.thorough
def test_twenty_models_fit_a_page_of_reasonable_size(tmp_path):
    for place in range(20):
        save(tmp_path / "all" / f"{place:02}", results_of(f"family/model-{place}", 30 + place))
    report(tmp_path, tmp_path / "all")
    assert (tmp_path / "report.html").stat().st_size < 1_500_000  # without pictures: tables and charts alone


def broken_folders():
    def cut(folder):
        (folder / "results.json").write_text((folder / "results.json").read_text()[:200])

    def without(name):
        return lambda folder: (folder / name).unlink()

    def changed(**parts):
        return lambda folder: (folder / "results.json").write_text(json.dumps(results_of("one") | parts))

    def other_columns(folder):
        pq.write_table(pa.table({"task": ["image_to_text"]}), folder / "per_image.parquet")

    def cut_examples(folder):
        write_examples(folder, [example()])
        (folder / "examples.parquet").write_bytes((folder / "examples.parquet").read_bytes()[:-40])

    def cut_table(folder):
        (folder / "per_image.parquet").write_bytes((folder / "per_query.parquet").read_bytes()[:-40])

    return {
        "results cut short": (cut, "JSON"),
        "no results": (without("results.json"), "results"),
        "table cut short": (cut_table, "per_image.parquet"),
        "examples cut short": (cut_examples, "examples.parquet"),
        "table without its columns": (other_columns, "columns"),
        "no tasks": (changed(tasks=None), "tasks"),
        "a task that is a list": (changed(tasks={"image_to_text": [1]}), "image_to_text"),
        "an interval of three": (
            changed(intervals={"image_to_text": {"clean": {"r1": [1, 2, 3]}}}),
            "intervals: image_to_text: clean: r1",
        ),
        "intervals that are a list": (changed(intervals={"image_to_text": []}), "intervals"),
        "fingerprint that is text": (changed(fingerprint="x"), "fingerprint"),
        "text that is no text": (changed(notes=["\ud800"]), "U+D800"),
    }


@pytest.mark.parametrize("what", broken_folders())
def test_bad_results_are_refused_in_one_line_and_nothing_is_written(tmp_path, refusal, what):
    spoil, named = broken_folders()[what]
    spoil(save(tmp_path / "one", results_of("one")))
    said = refusal("report", tmp_path / "one", "--out", tmp_path / "out" / "report.html").strip()
    assert "\n" not in said and named in said and "Traceback" not in said
    assert not list(tmp_path.glob("out/*"))


def test_sources_that_are_not_there_and_outputs_that_are_no_page_are_refused(tmp_path):
    folder = save(tmp_path / "one", results_of("one"))
    refused("nothing there", write_report, [tmp_path / "missing"], tmp_path / "report.html")
    with pytest.raises(InputError, match=r"without results\.json"):
        write_report([(tmp_path / "empty").mkdir() or tmp_path / "empty"], tmp_path / "report.html")
    refused("out: found", write_report, [folder], tmp_path / "report.csv")
    refused("at least one", write_report, [], tmp_path / "report.html")


def test_command_writes_both_files_and_says_where(tmp_path, capsys):
    folder = save(tmp_path / "one", results_of("one"))
    assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 0
    assert str(tmp_path / "r.html") in capsys.readouterr().out
    assert (tmp_path / "r.html").exists() and (tmp_path / "r.csv").exists()


def test_results_as_the_evaluation_writes_them_make_a_page(tmp_path):
    """No synthetic dictionary: six images, random vectors, the project's own writers, pictures and all."""
    rng = np.random.default_rng(0)
    captions = [f"a dog number {place}" for place in range(6)] + [f"a weapon number {place}" for place in range(6)]
    one = np.arange(6)
    asked, texts, both = Rows.of(ORIGINALS, one), Rows.of(TEXTS, one), np.arange(12)
    clean = RankTask("image_to_text", "clean", asked, texts, one, one, np.zeros(6, bool))
    altered = RankTask("image_to_text", "danger", asked, Rows.of(TEXTS, both), one, both % 6, both >= 6)
    images = tuple(f"val/{place}.png" for place in range(6))
    benchmark = Benchmark("rococo", images, tuple(captions), {}, (clean, altered))
    tables = {ORIGINALS: rng.normal(size=(6, 8)), TEXTS: rng.normal(size=(12, 8))}
    embeddings = Embeddings({key: unit(table) for key, table in tables.items()})
    outcomes = [task.score(embeddings) for task in benchmark.tasks]
    assert any(outcome.statistics.top_kind_published.max() > 0 for outcome in outcomes)
    fingerprint = make_fingerprint(model={"weights": "w"}, data={"rococo": {"captions": "c"}}, protocol="paper")
    results = make_results("tiny", "paper", fingerprint, outcomes, ["a note <for> readers"])
    data = {"images": str(tmp_path / "images"), "annotations": str(tmp_path / "none"), "image_count": 6}
    write_json(tmp_path / "tiny" / "results.json", results | {"data": {"rococo": data}})
    table = per_query_table(outcome.rows(benchmark) for outcome in outcomes)
    write_per_query(tmp_path / "tiny" / "per_query.parquet", table)
    paths = [tmp_path / "images" / name for name in images]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (900, 600, 3), dtype=np.uint8)).save(path)
    shown = dataclasses.replace(benchmark, image_sets={ORIGINALS: FileImages(images, tuple(paths))})
    write_examples(tmp_path / "tiny", collect_examples(shown, outcomes))
    page = report(tmp_path, tmp_path / "tiny")
    assert "a note <for> readers" in page.text()
    assert "a weapon number" in page.text("article")
    pictures = page.all("img")
    assert pictures and all(max(int(each["width"]), int(each["height"])) <= 320 for each in pictures)


def test_notes_of_some_models_name_them():
    def run(label, *notes):
        return Run(label, Path(label), {"notes": [*notes], "data": {}})

    of_all = Group((run("a", "one", "two", "two"), run("b", "two"), run("c", "one", "two")), ())
    assert page.notes(of_all).lines == ["a, c: one", "two"]
    assert page.notes(Group((run("a", "one"),), ())).lines == ["one"] and page.notes(Group((run("a"),), ())) is None
