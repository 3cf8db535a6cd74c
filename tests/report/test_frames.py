"""Results as pandas, and the first screen of the page."""

import json
import re

import pytest

import rococo_jax
from rococo_jax.cli.main import main
from tests.report.test_kinds import PARTS, choice_run
from tests.support.made_runs import make_run
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = {name: make_run(folder / name, name, noise) for name, noise in (("good_model", 0.5), ("poor", 2.0))}
    assert main(["report", str(folder), "--out", str(folder / "report.html")]) == 0
    return folder, {name: json.loads((path / "results.json").read_text()) for name, path in made.items()}


def test_the_data_frame_has_a_row_for_every_number(runs):
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


def test_the_data_frame_has_the_fields_of_variants_and_marks_headlines(tmp_path):
    choice_run(tmp_path / "one", "one", 60)
    frame = rococo_jax.read_results(tmp_path / "one")
    wanted = "model benchmark task part alteration corruption severity unseen pooled bindings variant kind metric value"
    wanted += " low high sd n chance is_headline is_primary"
    assert list(frame.columns[:21]) == wanted.split()
    results = json.loads((tmp_path / "one" / "results.json").read_text())
    fog = frame[(frame.corruption == "fog") & (frame.severity == 3) & (frame.metric == "ota")]
    assert {row.part: row.value for row in fog.itertuples()} == {
        part: results["tasks"]["sugarcrepe"][f"{part}/fog_3"]["ota"] for part in PARTS
    }
    means = frame[(frame.pooled == "mean") & (frame.metric == "ota")]
    assert len(means) == 1 and means.variant.item() == "mean" and bool(means.is_primary.item())
    whole = frame[frame.variant.isin(PARTS) & (frame.metric == "ota")].set_index("part")
    assert whole.n.to_dict() == PARTS and set(whole.kind) == {"choice"} and set(whole.benchmark) == {"sugarcrepe"}
    assert not frame.is_headline.any()  # these results declare none


def test_the_rows_of_the_tables_give_the_numbers_of_the_results(runs):
    folder, results = runs
    rows = rococo_jax.read_rows(folder)
    assert set(rows.model) == set(results)
    for (model, task, variant), group in rows.groupby(["model", "task", "variant"]):
        if group["seed"].nunique() < 2:
            assert 100 * group.r1.mean() == pytest.approx(results[model]["tasks"][task][variant]["r1"])
    refused("per_query.parquet", rococo_jax.read_rows, results_alone(folder))


def results_alone(folder):
    alone = folder.parent / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "results.json").write_text((folder / "poor" / "results.json").read_text())
    return alone


def test_the_data_frame_of_differences_has_the_numbers_of_the_command(runs, capsys):
    folder, _ = runs
    frame = rococo_jax.compare(folder, reference="poor")
    assert main(["compare", str(folder), "--reference", "poor", "--json"]) == 0
    printed = {(row["task"], row["variant"], row["metric"]): row for row in json.loads(capsys.readouterr().out)}
    primary = frame[frame.is_primary]
    key = ["task", "variant", "metric"]
    marked = rococo_jax.read_results(folder).query("is_primary and model == 'good_model'")[key]
    assert set(marked.itertuples(index=False, name=None)) == set(primary[key].itertuples(index=False, name=None))
    assert len(primary) >= len(printed) > 5 and len(frame) > len(primary)
    for row in primary.itertuples():
        if of_command := printed.get((row.task, row.variant, row.metric)):
            assert (row.model, row.reference, row.verdict) == ("good_model", "poor", of_command["verdict"])
            assert (row.low, row.high) == (of_command["low"], of_command["high"])
    refused("found 'nobody'", rococo_jax.compare, folder, reference="nobody")
    refused("none with counts", rococo_jax.compare, folder / "poor")


def test_the_first_screen_reports_how_often_models_are_fooled_and_their_differences(runs):
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


def test_the_link_to_the_csv_file_is_a_valid_address(runs, tmp_path):
    folder, _ = runs
    page = tmp_path / "50 % #1?.html"
    assert main(["report", str(folder / "good_model"), "--out", str(page)]) == 0
    assert page.with_suffix(".csv").exists() and 'href="./50%20%25%20%231%3F.csv"' in page.read_text()
