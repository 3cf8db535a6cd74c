"""Results as pandas and as LaTeX, and the first screen of the page."""

import json
import re

import pytest

import rococo_jax
from rococo_jax.cli.main import main
from tests.support.made_runs import make_run
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = {name: make_run(folder / name, name, noise) for name, noise in (("good_model", 0.5), ("poor", 2.0))}
    assert main(["report", str(folder), "--out", str(folder / "report.html")]) == 0
    return folder, {name: json.loads((path / "results.json").read_text()) for name, path in made.items()}


def test_every_figure_is_a_row_of_the_frame(runs):
    folder, results = runs
    frame = rococo_jax.read_results(folder)
    assert set(frame.model) == set(results) and set(frame.section) == {1}
    for name, content in results.items():
        own = frame[frame.model == name].set_index(["task", "variant", "metric"])
        for task, variants in content["tasks"].items():
            for variant, metrics in variants.items():
                for metric, value in metrics.items():
                    row = own.loc[(task, variant, metric)]
                    assert row.value == value or (value is None and row.value != row.value)
                    low, high = content["intervals"][task][variant].get(metric) or (None, None)
                    assert low is None or (row.low, row.high) == (low, high)
    refused("nothing", rococo_jax.read_results, folder / "not-there")


def test_latex_has_every_model_and_the_best_of_a_column_bold(runs):
    folder, results = runs
    text = (folder / "report.tex").read_text()
    assert r"good\_model & Clean" in text or r"good\_model & clean" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    clean = {name: content["tasks"]["image_to_text"]["clean"]["r1"] for name, content in results.items()}
    assert clean["good_model"] > clean["poor"]
    first = next(line for line in text.splitlines() if line.startswith(r"good\_model"))
    assert rf"\textbf{{{clean['good_model']:.1f}}}" in first
    for line in re.findall(r"^[^%\\\n].*&.*$", text, re.MULTILINE):
        assert line.endswith(r"\\") and not re.search(r"(?<!\\)[%$#_]", line)


def test_the_first_screen_says_how_often_the_best_model_is_fooled(runs):
    folder, results = runs
    page = (folder / "report.html").read_text()
    tasks = results["good_model"]["tasks"]["image_to_text"]
    hardest = max((name for name in tasks if name != "clean"), key=lambda name: tasks[name]["fr1"])
    before, _, shown = page.partition('id="headline"')
    assert shown and "<table" not in before
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", shown))
    assert (
        f"good_model, best of 2 models by clean R@1, puts an altered caption first for {tasks[hardest]['fr1']:.1f} %"
        in text
    )
    assert f"its R@1 goes from {tasks['clean']['r1']:.1f} to {tasks[hardest]['r1']:.1f}." in text


def test_bars_and_lines_are_the_figures_and_their_intervals(runs):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    folder, results = runs
    for given in (folder, [folder / "good_model", folder / "poor"], results):
        for task in ("image_to_text", None):
            axes = rococo_jax.plot_results(given, "fr1", task=task)
            rows = [
                (name, variant)
                for name in (["image_to_text", "text_to_image"] if task is None else [task])
                for variant in results["poor"]["tasks"][name]
                if variant != "clean"
            ]
            assert [label.get_text() for label in axes.get_legend().get_texts()] == list(results)
            heights = [bar.get_height() for bar in axes.patches]
            wanted = [content["tasks"][name][variant] for content in results.values() for name, variant in rows]
            assert sorted(heights) == sorted(each["fr1"] for each in wanted) and len(axes.get_xticks()) == len(rows)
            places = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
            bounds = [
                content["intervals"][name][variant]["fr1"] for content in results.values() for name, variant in rows
            ]
            assert sorted(tuple(line.get_ydata()) for line in axes.lines) == sorted(map(tuple, bounds))
            for line in axes.lines:
                (height,) = [height for place, height in places.items() if abs(place - line.get_xdata()[0]) < 1e-9]
                assert line.get_ydata()[0] <= height <= line.get_ydata()[1]
            assert sum(places) / len(places) == pytest.approx((len(rows) - 1) / 2)  # in the middle of the ticks
            assert "lower is better" in axes.get_ylabel()
            pyplot.close("all")
    alone = rococo_jax.plot_results(results["poor"], "r1", task="image_to_text")
    assert len(alone.patches) == len(results["poor"]["tasks"]["image_to_text"])  # clean too
    pyplot.close("all")


def test_what_cannot_be_plotted_is_one_line(runs):
    folder, results = runs
    other = results["poor"] | {"fingerprint": results["poor"]["fingerprint"] | {"protocol": "strict"}}
    for given, asked, said in (
        ({"a": results["poor"], "b": other}, {}, "2 groups that differ in protocol; wanted results of the same data"),
        (folder, {"metric": "fr2"}, "metric: found fr2; wanted one of"),
        (folder, {"task": "sideways"}, "task: found sideways; wanted one of image_to_text, text_to_image"),
        ({}, {}, "results: found none"),
        (folder / "not-there", {}, "nothing there"),
    ):
        refused(said, rococo_jax.plot_results, given, **asked)


def test_what_a_model_was_not_measured_on_is_a_gap_and_no_bar_of_0(runs):
    _, results = runs
    some = json.loads(json.dumps(results))
    del some["poor"]["tasks"]["image_to_text"]["danger"]
    some["poor"]["tasks"]["image_to_text"]["same_concept"]["fr1"] = 0.0
    axes = rococo_jax.plot_results(some, "fr1", task="image_to_text")
    variants = [label.get_text() for label in axes.get_xticklabels()]
    heights = dict(zip(variants, [bar.get_height() for bar in axes.containers[list(some).index("poor")]], strict=True))
    assert heights["Same concept"] == 0.0 and heights["Danger"] != heights["Danger"]  # NaN: nothing is drawn


def test_the_link_to_the_figures_is_an_address(runs, tmp_path):
    folder, _ = runs
    page = tmp_path / "50 % #1?.html"
    assert main(["report", str(folder / "good_model"), "--out", str(page)]) == 0
    assert page.with_suffix(".csv").exists() and 'href="./50%20%25%20%231%3F.csv"' in page.read_text()
