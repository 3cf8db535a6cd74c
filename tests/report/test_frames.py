"""Results as pandas, and the first screen of the page."""

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
    for given in (folder, results):
        frame = rococo_jax.read_results(given)
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
    assert rococo_jax.read_results({"a": results["poor"]}).model.unique() == ["a"]
    refused("nothing", rococo_jax.read_results, folder / "not-there")


def test_the_first_screen_says_how_often_a_model_is_fooled_and_what_differs(runs):
    folder, results = runs
    page = (folder / "report.html").read_text()
    tasks = results["good_model"]["tasks"]["image_to_text"]
    declared = "same_concept"  # the first altered variant in reading order, which is not the one of the highest FR@1
    assert tasks["danger"]["fr1"] != tasks[declared]["fr1"]
    before, _, screen = page.partition('id="headline"')
    assert screen and "<table" not in before
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", screen))
    assert text.index("What was tested.") < text.index("What happened.") < text.index("What to conclude.")
    assert f"With good_model, an altered caption ranks first for {tasks[declared]['fr1']:.1f} %" in text
    assert f"for {tasks['clean']['r1']:.1f} % before and {tasks[declared]['r1']:.1f} % after." in text
    assert "poor</b> is significantly more often fooled than good_model" in screen
    assert "poor</b> is significantly worse than good_model in clean R@1" in screen


def test_the_link_to_the_figures_is_an_address(runs, tmp_path):
    folder, _ = runs
    page = tmp_path / "50 % #1?.html"
    assert main(["report", str(folder / "good_model"), "--out", str(page)]) == 0
    assert page.with_suffix(".csv").exists() and 'href="./50%20%25%20%231%3F.csv"' in page.read_text()
