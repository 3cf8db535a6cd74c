"""Correlations over models: the files, the page, and what is refused."""

import csv
import json
import xml.etree.ElementTree as ET

import numpy as np
import pandas
import pytest
from scipy import stats

from rococo_jax.cli.main import main
from rococo_jax.metrics.correlation import correlate
from rococo_jax.report import write_report
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.correlations import correlate_runs
from tests.support.paths import CHECKOUT

MODELS = 12
PLACES = ("image_to_text/clean/r1", "image_to_text/danger/fr1", "image_to_text/danger/drop", "sugarcrepe/mean/ota")


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """Return results of made-up models, in which FR@1 follows clean R@1 and SugarCrepe follows nothing."""
    folder, rng = tmp_path_factory.mktemp("population"), np.random.default_rng(4)
    for number in range(MODELS):
        clean = float(rng.uniform(30, 70))
        altered = {"r1": clean - 9, "r5": clean, "fr1": 90 - clean + float(rng.normal()), "drop": float(rng.uniform())}
        tasks = {
            "image_to_text": {"clean": {"r1": clean, "r5": 99.0}, "danger": altered},
            "sugarcrepe": {"mean": {"ota": float(rng.uniform(60, 80))}},
        }
        write_run(folder / f"model-{number}", f"model-{number}", tasks)
    return folder


def write_run(folder, name, tasks, protocol="paper"):
    results = {
        "format": "rococo_jax.results", "version": 2, "model": name, "protocol": protocol, "tasks": tasks,
        "fingerprint": {"model": {"weights": name}, "data": {"rococo": "made"}, "protocol": protocol},
        "intervals": {}, "kinds": {"image_to_text": "rank", "sugarcrepe": "choice"},
    }  # fmt: skip
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))


def column(folder, place):
    task, variant, metric = place.split("/")
    read = [json.loads((folder / f"model-{n}" / "results.json").read_text()) for n in range(MODELS)]
    return np.array([each["tasks"][task][variant][metric] for each in read])


def written(folder):
    """The pairs in the file of a folder."""
    return list(csv.DictReader((folder / "correlations.csv").open(newline="")))


def test_the_files_contain_the_correlations_of_results_by_scipy(population, tmp_path, capsys):
    assert main(["correlate", str(population), "--out", str(tmp_path / "out")]) == 0
    assert "12 models, 4 metrics; after Holm's correction 1 of 6 pairs" in capsys.readouterr().out
    rows = written(tmp_path / "out")
    assert len(rows) == 6 and {row["models"] for row in rows} == {"12"}
    raw = []
    for row in rows:
        x, y = ("/".join(row[f"{side}_{part}"] for part in ("task", "variant", "metric")) for side in "xy")
        theirs = stats.spearmanr(column(population, x), column(population, y))
        assert (float(row["rho"]), float(row["p"])) == pytest.approx((theirs.statistic, theirs.pvalue))
        assert float(row["low"]) <= float(row["rho"]) <= float(row["high"])
        raw.append((float(row["p"]), float(row["p_holm"])))
        assert (row["partial_rho"] == "") == ("image_to_text/clean/r1" in (x, y))
    raw.sort()
    assert raw[0][1] == pytest.approx(6 * raw[0][0]) and raw[1][1] == pytest.approx(min(1, 5 * raw[1][0]))
    value = json.loads((tmp_path / "out" / "correlations.json").read_text())
    assert value["metrics"] == list(PLACES) and value["given"] == PLACES[0] and len(value["models"]) == MODELS
    assert [pair["plain"]["rho"] for pair in value["pairs"]] == [float(row["rho"]) for row in rows]
    drawn = ET.parse(tmp_path / "out" / "correlations.svg").getroot()
    cells = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert all(f"{round(100 * float(row['rho']))}".replace("-", "−") in cells for row in rows)
    # Columns of 26 px beside the names: none of the last metric.
    assert float(drawn.get("width")) == 330 + 3 * 26 + 8


def test_only_the_report_of_many_models_has_the_map_of_correlations(population, tmp_path):
    page = write_report([population], tmp_path / "many.html")[0].read_text()
    assert "Correlations over 12 models" in page or "over 12 models, times 100" in page
    few = [population / f"model-{number}" for number in range(6)]
    assert "Correlations over" not in write_report(few, tmp_path / "few.html")[0].read_text()


def test_input_that_cannot_be_correlated_is_refused_in_one_line(population, tmp_path, refusal):
    other = tmp_path / "other"
    tasks = json.loads((population / "model-0" / "results.json").read_text())["tasks"]
    write_run(other, "other", tasks, protocol="strict")
    few = [str(population / f"model-{number}") for number in range(4)]
    cases = (
        (few, "models: found 4; wanted results of 5 models or more"),
        ([str(population), str(other)], "found 2 kinds that differ in protocol"),
        ([str(population), "--metrics", "image_to_text/danger/fr2"], "did you mean image_to_text/danger/fr1?"),
        ([str(population), "--given", "clean"], "rococo: given: metric"),
        ([str(population), "--metrics", "image_to_text/clean/r5"], "found 1 that every model has and that differ"),
    )
    for words, said in cases:
        error = refusal("correlate", *words, "--out", tmp_path / "out")
        assert said in error and error.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_the_control_metric_is_included_even_if_only_others_are_requested(population):
    (group,) = group_by_fingerprint(load_results([population]))
    assert ["/".join(place) for place in correlate_runs(group.runs, PLACES[2:]).places] == [PLACES[0], *PLACES[2:]]


def test_metrics_that_are_missing_for_a_model_or_constant_are_excluded_and_named(population):
    runs = list(group_by_fingerprint(load_results([population]))[0].runs)
    del runs[0].results["tasks"]["sugarcrepe"]
    study = correlate_runs(runs, [*PLACES, "image_to_text/clean/r5"])
    assert len(study.places) == 3
    assert study.left_out == (
        "SugarCrepe, mean: OTA: 1 of 12 models lack it",
        "Image to text, clean: R@5: equal for every model",
    )


def test_the_published_correlations_match_the_published_table():
    findings = CHECKOUT / "docs" / "research"
    scores = pandas.read_csv(findings / "published_field.csv", index_col="checkpoint")
    place, values = {name: number for number, name in enumerate(scores)}, scores.to_numpy().T
    assert values.shape == (14, 202)
    found = {
        "rho": correlate(values, resamples=1).rho,
        "partial_rho": correlate(values, place["coco_i2t"], resamples=1).rho,
    }
    columns = {"image_to_text": "coco_i2t", "text_to_image": "coco_t2i", "mmvp": "mmvp_vlm"}
    kept = pandas.read_csv(findings / "population_published.csv").replace(columns)
    assert len(kept) == 78  # without ImageNet
    pairs = [[place[name] for name in kept[side]] for side in ("x_task", "y_task")]
    for name, rho in found.items():
        has = kept[name].notna()
        # Sums of another processor's order of addition differ in the last digits.
        np.testing.assert_allclose(rho[*pairs][has], kept[name][has], rtol=0, atol=1e-12)
    assert has.sum() == 66  # none of what is held


def test_correlations_of_a_table_of_scores_match_scipy(tmp_path, capsys, refusal):
    rng = np.random.default_rng(3)
    size, one = rng.normal(size=(2, 9))
    other = size + one
    rows = [[f"vit-{n}", "laion", size[n], one[n], other[n], 7, "" if n else 1.5] for n in range(9)]
    table, out = tmp_path / "scores.csv", tmp_path / "out"

    def write(rows):
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([["name", "data", "R@1", "one", "other", "same", "part"], *rows])

    write(rows)
    assert main(["correlate", str(table), "--given", "R@1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "9 models, 3 metrics" in said and "controlling for R@1" in said
    first, *_, pair = written(out)
    assert (first["x_task"], first["y_task"]) == ("R@1", "one")
    assert (pair["x_task"], pair["y_task"], pair["x_metric"]) == ("one", "other", "")
    assert float(pair["rho"]) == pytest.approx(stats.spearmanr(one, other).statistic)
    first, second, third = (stats.rankdata(each) for each in (size, one, other))
    left = [each - np.polyval(np.polyfit(first, each, 1), first) for each in (second, third)]
    assert float(pair["partial_rho"]) == pytest.approx(np.corrcoef(*left)[0, 1])
    value = json.loads((out / "correlations.json").read_text())
    assert (value["metrics"], value["given"], value["models"][0]) == (["R@1", "one", "other"], "R@1", "vit-0 laion")
    assert value["left_out"] == ["same: equal for every model", "part: 8 of 9 models lack it"]
    assert main(["correlate", str(table), "--metrics", "R@1,other", "--out", str(out)]) == 0
    assert "2 metrics" in capsys.readouterr().out
    cases = (
        (rows, ["--metrics", "two,one"], "rococo: metrics: column: found 'two'"),
        (rows, ["--given", "part"], "part: 8 of 9 models lack it"),
        (rows[:4], [], "models: found 4; wanted 5 or more"),
        ([*rows, rows[2]], [], "'vit-2 laion' twice"),
        ([*rows, rows[2][:-1]], [], "row 10 (to line 11): found 6 cells; wanted 7"),
    )
    for held, words, said in cases:
        write(held)
        error = refusal("correlate", table, *words, "--out", out)
        assert said in error and error.count("\n") == 1


SCORES = [(f"m{n}", 7.5 * n % 11, (5 * n) % 13 + 0.25, 0.5 * n) for n in range(8)]
HEAD = "model,acc,fr1,ece\n"


def scores(model="{}", fr1="{}", head=HEAD) -> str:
    return head + "".join(f"{model.format(m)},{a},{fr1.format(f)},{e}\n" for m, a, f, e in SCORES)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (scores(), "'model'; metrics acc, fr1, ece"),
        (scores(fr1="{}%"), "'model'; metrics acc, fr1, ece; in percent: fr1"),
        (scores(fr1="{} %").replace(",", ";"), "in percent: fr1"),
        (scores().replace("m", "").replace("odel", "Model"), "'Model'; metrics acc, fr1, ece"),
        (scores(head=",acc,fr1,ece\n").replace("m", ""), "''; metrics acc, fr1, ece"),
    ],
    ids=["plain", "percent", "semicolons", "models that are numbers", "numbers of rows"],
)
def test_the_role_of_a_column_is_not_guessed(text, named, tmp_path, capsys):
    (tmp_path / "s.CSV").write_text(text)
    assert main(["correlate", str(tmp_path / "s.CSV"), "--out", str(tmp_path / "out")]) == 0
    assert named in capsys.readouterr().err
    rows = written(tmp_path / "out")
    assert [(row["x_task"], row["y_task"]) for row in rows] == [("acc", "fr1"), ("acc", "ece"), ("fr1", "ece")]
    values = dict(zip(("acc", "fr1", "ece"), np.array([row[1:] for row in SCORES]).T, strict=True))
    for row in rows:
        theirs = stats.spearmanr(values[row["x_task"]], values[row["y_task"]]).statistic
        assert float(row["rho"]) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (scores(fr1='"{}"').replace('.25"', ',25"'), "row 1, column 'fr1': found '0,25'; wanted a number such as 45.3"),
        (scores().replace("5.25", "5.25%"), "row 2, column 'fr1': found '5.25%'"),
        (scores().replace("5.25", "about 5"), "row 2, column 'fr1': found 'about 5'"),
        (scores(fr1="{} ± 1"), "row 1, column 'fr1': found '0.25 ± 1'"),
        (scores(head="model,acc,acc,ece\n"), "column 'acc': found 2 columns of that name; wanted one"),
        (scores(model="1", head="system,acc,fr1,ece\n"), "columns: found numbers alone"),
    ],
    ids=["decimal commas", "one percent sign", "words", "errors", "a heading twice", "no names"],
)
def test_a_cell_that_is_not_a_number_is_named(text, said, tmp_path, refusal):
    (tmp_path / "s.csv").write_text(text)
    assert said in refusal("correlate", tmp_path / "s.csv", "--out", tmp_path / "out")
