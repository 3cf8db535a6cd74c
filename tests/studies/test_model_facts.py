"""Facts about models: groups and further variables, against pandas, NumPy and SciPy."""

import csv
import json

import numpy as np
import pandas
import pytest
from scipy import stats

from rococo_jax.cli.main import main

MODELS = [f"model-{number}" for number in range(8)]
SCORES = {
    "top1": [40.0, 45.0, 52.0, 55.0, 61.0, 64.0, 70.0, 71.5],
    "auroc": [60.0, 66.0, 63.0, 72.0, 75.0, 71.0, 83.0, 80.0],
}
FACTS = {
    "data": ["yfcc", "yfcc", "laion", "laion", "laion", "dfn", "dfn", "dfn"],
    "data_size": [15, 15, 400, 2000, 2000, 2000, 5000, 5000],
    "loss": ["softmax", "sigmoid", "softmax", "sigmoid", "softmax", "sigmoid", "softmax", ""],
    "remark": MODELS,
}


@pytest.fixture
def files(tmp_path):
    pandas.DataFrame({"model": MODELS, **SCORES}).to_csv(tmp_path / "scores.csv", index=False)
    # In another order, and with a model that has no scores.
    facts = pandas.DataFrame({"model": MODELS, **FACTS})[::-1]
    facts.loc[99] = ["another", "yfcc", 3, "softmax", "x"]
    facts.to_csv(tmp_path / "facts.csv", index=False)
    return tmp_path


def run(files, capsys):
    words = f"correlate {files}/scores.csv --facts {files}/facts.csv --out {files}/out"
    assert main(words.split()) == 0
    return capsys.readouterr().err


def test_r2_matches_the_least_squares_line_in_both_directions(files, capsys):
    run(files, capsys)
    pairs = json.loads((files / "out" / "correlations.json").read_text())["pairs"]
    columns = SCORES | {"data_size": FACTS["data_size"]}
    assert {frozenset((pair["x"], pair["y"])) for pair in pairs} == {
        frozenset(each) for each in (("top1", "auroc"), ("top1", "data_size"), ("auroc", "data_size"))
    }
    for pair in pairs:
        x, y = (np.array(columns[pair[side]], float) for side in "xy")
        for known, explained in ((x, y), (y, x)):
            residual = explained - np.polyval(np.polyfit(known, explained, 1), known)
            assert pair["r2"] == pytest.approx(1 - residual.var() / explained.var())
        assert pair["plain"]["rho"] == pytest.approx(stats.spearmanr(x, y).statistic)
    rows = list(csv.DictReader((files / "out" / "correlations.csv").open()))
    assert [float(row["r2"]) for row in rows] == [pair["r2"] for pair in pairs]
    assert "R²" in (files / "out" / "correlations.html").read_text()


def test_group_means_match_pandas_and_their_tests_match_scipy(files, capsys):
    said = run(files, capsys)
    assert "1 rows of models without results are not used" in said and "remark: not compared" in said
    written = pandas.read_csv(files / "out" / "facts.csv")
    table = pandas.DataFrame({**SCORES, **FACTS})
    tests = {}
    for fact in ("data", "loss"):
        groups = table[table[fact] != ""].groupby(fact)
        for name in SCORES:
            rows = written[(written["fact"] == fact) & (written["variable"] == name)].set_index("group")
            expected = groups[name].agg(["count", "mean", "std"])
            assert set(rows.index) == set(expected.index)
            for group, (count, mean, sd) in expected.iterrows():
                assert rows.loc[group, ["models", "mean", "sd"]].tolist() == pytest.approx([count, mean, sd])
            tests[fact, name] = stats.kruskal(*(values for _, values in groups[name])).pvalue
            assert rows["p"].to_numpy() == pytest.approx(tests[fact, name])
    # Holm: the smallest p times the number of tests, then the next times one less, never falling.
    ordered, largest = sorted(tests, key=tests.get), 0.0
    for rank, (fact, name) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * tests[fact, name]))
        rows = written[(written["fact"] == fact) & (written["variable"] == name)]
        assert rows["p_holm"].to_numpy() == pytest.approx(largest)
    page = (files / "out" / "correlations.html").read_text()
    assert "By data" in page and "laion (3)" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda facts: facts[facts["model"] != "model-3"],
            "found no row for 'model-3'; wanted one row for each",
        ),
        (lambda facts: pandas.concat([facts, facts[:1]]), "twice; wanted one row for each model"),
        (lambda facts: facts.rename(columns={"model": "who"}), "columns: found who, data"),
        (lambda facts: facts.assign(data_size="12,5"), "column 'data_size': found '12,5'"),
    ],
)
def test_unusable_facts_are_reported_in_one_line(files, change, message, refusal):
    facts = pandas.read_csv(files / "facts.csv", keep_default_na=False)
    change(facts).to_csv(files / "changed.csv", index=False)
    error = refusal(
        "correlate", str(files / "scores.csv"), "--facts", str(files / "changed.csv"), "--out", files / "out"
    )
    # Lines before the last one name the table's models.
    assert message in error.splitlines()[-1] and error.splitlines()[-1].startswith("rococo: ")
    assert not (files / "out").exists()
