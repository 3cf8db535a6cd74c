"""`rococo compare` and the page's table of verdicts show the differences of the results, with the same digits."""

import json

import pytest

from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import read_results
from rococo_jax.report import write_report
from tests.support.made_runs import make_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return [
        make_run(folder / "base", "base", noise=1.0, seed=0),
        make_run(folder / "worse", "worse", noise=2.2, seed=1),
        make_run(folder / "same", "same", noise=1.0, seed=2),
    ]


def compare(capsys, *arguments):
    assert main(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_json_rows_are_the_differences_of_the_results(folders, capsys):
    rows = json.loads(compare(capsys, *folders, "--json"))
    values = {folder.name: read_results(folder / "results.json")["tasks"] for folder in folders}
    assert {row["model"] for row in rows} == {"worse", "same"} and {row["reference"] for row in rows} == {"base"}
    for row in rows:
        one, other = (values[name][row["task"]][row["variant"]][row["metric"]] for name in (row["model"], "base"))
        assert (row["value"], row["reference_value"]) == (one, other)
        assert row["difference"] == pytest.approx(one - other)
        assert row["low"] <= row["difference"] <= row["high"]
    primary = {(row["metric"], row["variant"] == "clean") for row in rows}
    assert primary == {("r1", True), ("fr1", False), ("grounding", False)}


def test_a_verdict_follows_the_corrected_p_and_the_better_end(folders, capsys):
    rows = json.loads(compare(capsys, *folders, "--json"))
    for row in rows:
        higher_is_better = row["metric"] != "fr1"
        is_better = (row["difference"] > 0) == higher_is_better
        wanted = ("better" if is_better else "worse") if row["p"] < 0.05 else "undecided"
        assert row["verdict"] == wanted
    assert {row["verdict"] for row in rows if row["model"] == "worse"} >= {"worse"}


def test_models_are_equivalent_within_a_wide_margin_alone(folders, capsys):
    wide = json.loads(compare(capsys, *folders, "--margin", 99, "--json"))
    assert {row["verdict"] for row in wide} == {"equivalent"}
    narrow = json.loads(compare(capsys, *folders, "--margin", 0.01, "--json"))
    assert "equivalent" not in {row["verdict"] for row in narrow}


def test_the_named_reference_and_metrics_are_compared(folders, capsys):
    rows = json.loads(compare(capsys, *folders, "--reference", "same", "--metrics", "r5,r10", "--json"))
    assert {row["reference"] for row in rows} == {"same"} and {row["model"] for row in rows} == {"base", "worse"}
    assert {row["metric"] for row in rows} == {"r5", "r10"}


def test_page_and_terminal_have_the_same_cells(folders, capsys, tmp_path):
    printed = compare(capsys, *folders)
    lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    write_report(folders, tmp_path / "report.html")
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    start = markdown.index("Compared with base")
    of_page = [line for line in markdown[start:].splitlines() if line.startswith("|")][2 : 2 + len(rows)]
    assert header[-1] == "Verdict" and len(rows) == 16
    assert [[cell.replace("**", "").strip() for cell in line.strip("|").split("|")] for line in of_page] == rows
    assert "worse against base: " in printed and "16 primary differences" not in printed
    assert "8 primary differences" in printed


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--reference", "nobody"], "--reference: model: found 'nobody'"),
        (["--metrics", "fr2"], "did you mean fr1?"),
        (["--margin", "0"], "--margin: found 0.0"),
        (["--margin", "nan"], "--margin: found nan"),
    ],
)
def test_bad_options_are_refused_in_one_line(folders, refusal, arguments, part):
    assert part in refusal("compare", *folders, *arguments)


def test_files_beside_the_results_are_refused_with_the_folder_to_name(folders, tmp_path, refusal):
    # As a shell expands out/*.
    (tmp_path / "journal.jsonl").write_text("{}\n{}\n")
    error = refusal("compare", tmp_path / "journal.jsonl", *folders)
    found = "journal.jsonl: results: found a file .jsonl; wanted a results.json or a folder that contains some"
    assert f"{found}, such as {tmp_path}" in error


def test_one_model_is_refused(folders, refusal):
    assert "at least two models" in refusal("compare", folders[0])
