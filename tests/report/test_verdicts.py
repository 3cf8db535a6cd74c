"""`rococo compare` and the page's table of verdicts show the differences of the results, with the same digits."""

import json
import re

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import read_results
from rococo_jax.report import write_report
from rococo_jax.report.difference import p_value
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


def test_rows_in_json_match_the_differences_of_the_results(folders, capsys):
    rows = json.loads(compare(capsys, *folders, "--json"))
    values = {folder.name: read_results(folder / "results.json")["tasks"] for folder in folders}
    assert {row["model"] for row in rows} == {"worse", "same"} and {row["reference"] for row in rows} == {"base"}
    for row in rows:
        one, other = (values[name][row["task"]][row["variant"]][row["metric"]] for name in (row["model"], "base"))
        assert (row["value"], row["reference_value"]) == (one, other)
        change = abs(one - 50) - abs(other - 50) if row["metric"] == "blind" else one - other
        assert row["points"] == pytest.approx(change)
        assert row["low"] <= row["points"] <= row["high"] and row["benchmark"] == "rococo"
    primary = {(row["metric"], row["variant"] == "clean") for row in rows}
    assert primary == {("r1", True), *((name, False) for name in ("r1", "fr1", "grounding", "blind"))}


def test_a_verdict_follows_the_corrected_p_and_the_better_end(folders, capsys):
    rows = json.loads(compare(capsys, *folders, "--json"))
    for row in rows:
        if row["metric"] == "blind":
            directions = ("text bias", "less text bias")
        else:
            directions = ("better", "worse") if row["metric"] != "fr1" else ("worse", "better")
        is_significant = row["p_corrected"] < 0.05
        assert row["verdict"] == (directions[row["points"] < 0] if is_significant else "undecided")
        assert is_significant == (not row["low"] <= 0 <= row["high"])
    assert {row["verdict"] for row in rows if row["model"] == "worse"} >= {"worse"}


def test_models_are_equivalent_only_within_a_wide_margin(folders, capsys):
    wide = json.loads(compare(capsys, *folders, "--margin", 99, "--json"))
    assert {row["verdict"] for row in wide} == {"equivalent"}
    narrow = json.loads(compare(capsys, *folders, "--margin", 5.5, "--json"))
    assert all(abs(row["points"]) < 5.5 for row in narrow if row["verdict"] == "equivalent")
    assert {row["verdict"] for row in narrow} - {"equivalent"}


def test_a_margin_too_small_for_the_images_is_refused_with_the_smallest_possible_one(folders, refusal):
    error = refusal("compare", *folders, "--margin", "4.9")
    assert "--margin: points: found 4.9; wanted at least 5: 60 images cannot show less (3 / 60)" in error


def test_a_family_of_all_tasks_is_corrected_for_more_tests(folders, capsys):
    by_task, of_all = (
        json.loads(compare(capsys, *folders, "--json", "--family", family)) for family in ("task", "all")
    )
    key = [(row["model"], row["task"], row["variant"], row["metric"], row["p"]) for row in by_task]
    assert key == [(row["model"], row["task"], row["variant"], row["metric"], row["p"]) for row in of_all]
    for one, other in zip(by_task, of_all, strict=True):
        assert one["p_corrected"] <= other["p_corrected"] and one["mde"] < other["mde"]
        assert (other["p_corrected"] < 0.05) == (not other["low"] <= 0 <= other["high"])
    assert "of all 2 tasks together" in compare(capsys, *folders, "--family", "all", "--all")


def test_blind_can_be_compared_alone_and_a_metric_without_a_best_value_is_refused(folders, capsys, refusal):
    rows = json.loads(compare(capsys, *folders, "--metrics", "blind", "--json"))
    assert {row["metric"] for row in rows} == {"blind"} and len(rows) == 6
    error = refusal("compare", *folders, "--metrics", "top1_own")
    assert "found top1_own, of which no end is better; wanted one of " in error and "blind" in error


def test_the_named_reference_and_metrics_are_compared(folders, capsys):
    rows = json.loads(compare(capsys, *folders, "--reference", "same", "--metrics", "r5,r10", "--json"))
    assert {row["reference"] for row in rows} == {"same"} and {row["model"] for row in rows} == {"base", "worse"}
    assert {row["metric"] for row in rows} == {"r5", "r10"}


def test_the_page_and_the_terminal_show_the_same_cells(folders, capsys, tmp_path):
    printed = compare(capsys, *folders, "--all")
    lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    write_report(folders, tmp_path / "report.html")
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    start = markdown.index("Compared with base")
    of_page = [line for line in markdown[start:].splitlines() if line.startswith("|")][2 : 2 + len(rows)]
    assert header[-1] == "Verdict" and len(rows) == 28
    assert [[cell.replace("**", "").strip() for cell in line.strip("|").split("|")] for line in of_page] == rows
    assert "worse against base: " in printed and "28 primary differences" not in printed
    assert "14 primary differences" in printed


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


def test_files_beside_the_results_are_refused_with_the_right_folder(folders, tmp_path, refusal):
    # As a shell expands out/*.
    (tmp_path / "journal.jsonl").write_text("{}\n{}\n")
    error = refusal("compare", tmp_path / "journal.jsonl", *folders)
    found = "journal.jsonl: results: found a file .jsonl; wanted a results.json or a folder that contains some"
    assert f"{found}, such as {tmp_path}" in error


def test_a_comparison_of_one_model_is_refused(folders, refusal):
    assert "at least two models" in refusal("compare", folders[0])


def test_models_at_chance_are_not_described_as_fooled_less_often(tmp_path, capsys):
    """Two models whose captions lie anywhere: neither finds more than guessing does."""
    chance = [make_run(tmp_path / name, name, noise=60.0, seed=seed) for seed, name in enumerate(("blind", "deaf"))]
    folders = [*chance, make_run(tmp_path / "good", "good", noise=1.0)]
    rows = json.loads(compare(capsys, *folders, "--json"))
    of_skill = [row for row in rows if row["metric"] in ("fr1", "grounding")]
    # The good model is compared with one at chance, too.
    assert {row["verdict"] for row in of_skill} == {"at chance"} and len(of_skill) == 12
    assert all(row["verdict"] != "at chance" for row in rows if row not in of_skill)
    assert {row["verdict"] for row in rows if (row["model"], row["metric"]) == ("good", "r1")} >= {"better"}
    # Nor do tiles show their ranges.
    page = write_report(folders, tmp_path / "report.html")[0].read_text()
    assert "Without models at chance: blind, deaf." in page
    assert 'class="tile"' not in write_report(chance, tmp_path / "chance.html")[0].read_text()
    printed = compare(capsys, *chance, "--all")
    assert "No model can be distinguished from chance" in printed and "significantly ahead" not in printed
    assert "at chance: without alteration, the model or the reference finds no more than guessing does" in printed


def test_a_model_and_its_copy_have_identical_answers(folders, tmp_path, capsys):
    copy = make_run(tmp_path / "copy", "base", noise=1.0, seed=0)
    rows = json.loads(compare(capsys, folders[0], copy, "--json"))
    assert {row["verdict"] for row in rows} == {"identical answers"}
    assert all(row["points"] == 0 and row["mde"] is None and row["low"] == -row["high"] < -5 for row in rows)


def renamed(folder, old, new):
    """Rename a variant in the results and in their rows."""
    results = json.loads((folder / "results.json").read_text().replace(f'"{old}"', f'"{new}"'))
    (folder / "results.json").write_text(json.dumps(results))
    table = pq.read_table(folder / "per_query.parquet")
    for name in ("variant", "alteration"):
        column = pc.replace_substring(pc.cast(table[name], "string"), old, new)
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, folder / "per_query.parquet")
    return folder


def test_the_control_is_not_a_primary_difference(tmp_path, capsys):
    made = [make_run(tmp_path / name, name, noise) for name, noise in (("base", 1.0), ("worse", 2.2))]
    rows = json.loads(compare(capsys, *(renamed(folder, "danger", "control") for folder in made), "--json"))
    assert {row["variant"] for row in rows} == {"clean", "same_concept", "mix_0.9"}


@pytest.mark.parametrize("reference", ["base", "worse"])
def test_the_sentence_about_the_best_model_has_the_p_of_the_table(folders, capsys, reference):
    folders = folders[:2]
    rows = json.loads(compare(capsys, *folders, "--reference", reference, "--json"))
    printed = compare(capsys, *folders, "--reference", reference, "--all")
    for row in [row for row in rows if (row["variant"], row["metric"]) == ("clean", "r1")]:
        (sentence,) = re.findall(f"{row['task'].replace('_', ' ').capitalize()}: .*", printed)
        assert f"p {p_value(row['p_corrected'])})" in sentence
        assert ("significantly ahead" in sentence) == (row["p_corrected"] < 0.05)


def test_the_best_two_models_are_not_called_significantly_different_without_a_test(folders, capsys):
    printed = compare(capsys, *folders, "--reference", "worse", "--all")
    assert "These two were not tested against each other" in printed and "significantly ahead" not in printed


def test_a_task_missing_for_the_reference_is_compared_with_the_first_model_that_has_it(folders, tmp_path, capsys):
    made = [make_run(tmp_path / name, name, noise) for name, noise in (("first", 1.0), ("second", 1.2), ("third", 2.0))]
    results = json.loads((made[0] / "results.json").read_text())
    for part in ("tasks", "intervals", "sizes", "kinds", "variants", "chance"):
        results[part].pop("text_to_image")
    (made[0] / "results.json").write_text(json.dumps(results))
    rows = json.loads(compare(capsys, *made, "--json"))
    references = {(row["task"], row["model"]): row["reference"] for row in rows}
    assert references == {
        ("image_to_text", "second"): "first",
        ("image_to_text", "third"): "first",
        ("text_to_image", "third"): "second",
    }
