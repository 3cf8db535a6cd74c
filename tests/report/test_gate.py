"""`rococo compare --fail-on`: the exit code follows the verdicts, and models that cannot be compared are bad input."""

import json
import re
import shutil

import pytest

from rococo_jax.cli.main import main
from tests.report.test_kinds import choice_run
from tests.support.made_runs import make_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    made = (("base", 1.0, 0), ("worse", 2.2, 1), ("same", 1.0, 2))
    return {name: make_run(folder / name, name, noise, seed) for name, noise, seed in made}


def check(capsys, *arguments):
    code = main(["compare", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


@pytest.mark.parametrize("metrics", [(), ("--metrics", "fr1,r1", "--margin", "60")])
@pytest.mark.parametrize("verdict", ["worse", "undecided", "text-bias"])
@pytest.mark.parametrize("model", ["worse", "same"])
def test_the_exit_code_is_3_if_a_printed_difference_has_the_requested_verdict(folders, capsys, model, verdict, metrics):
    code, rows, error = check(capsys, folders[model], "--baseline", folders["base"], "--fail-on", verdict, *metrics)
    failing = {"worse": {"worse"}, "undecided": {"worse", "undecided", "at chance"}, "text-bias": {"text bias"}}
    verdicts = [row["verdict"] for row in rows if row["verdict"] in failing[verdict]]
    assert {row["model"] for row in rows} == {model} and {row["reference"] for row in rows} == {"base"}
    assert code == (3 if verdicts else 0)
    lines = [line for line in error.splitlines() if line.startswith("rococo compare: ")]
    assert len(lines) == bool(verdicts)
    if verdicts:
        assert lines[0].startswith(f"rococo compare: {verdicts[0]}: {model} against base: ")


def test_a_gate_corrects_over_all_tasks_unless_another_family_is_requested(folders, capsys):
    by_family = {
        family: check(capsys, *folders.values(), *options)[1]
        for family, options in {
            "gate": ("--fail-on", "worse"),
            "all": ("--family", "all"),
            "task": ("--fail-on", "worse", "--family", "task"),
            "usual": (),
        }.items()
    }
    assert by_family["gate"] == by_family["all"] and by_family["task"] == by_family["usual"] != by_family["all"]


def test_a_baseline_of_another_version_is_compared_and_one_of_other_data_refused(folders, tmp_path, capsys, refusal):
    older, other = tmp_path / "older", tmp_path / "other"
    for folder in (older, other):
        shutil.copytree(folders["base"], folder)
    content = json.loads((older / "results.json").read_text())
    content["fingerprint"]["versions"] = {"rococo_jax": "0.1.0", "jax": "0.9.0"}
    content.pop("sha256", None)
    (older / "results.json").write_text(json.dumps(content))
    code, rows, _ = check(capsys, folders["worse"], "--baseline", older / "results.json", "--fail-on", "worse")
    assert code == 3 and len(rows) == 14
    content["fingerprint"]["data"]["rococo"]["captions"] = "others"
    (other / "results.json").write_text(json.dumps(content))
    error = refusal("compare", folders["worse"], "--baseline", other, "--fail-on", "worse")
    assert "wanted at least two models that were evaluated on the same data" in error
    # Two models are comparable, and neither with the baseline.
    error = refusal("compare", folders["worse"], folders["same"], "--baseline", other, "--fail-on", "worse")
    assert "worse: differences: found none of worse; wanted at least one primary difference" in error


def test_a_model_without_a_table_cannot_pass(folders, tmp_path, refusal):
    bare = tmp_path / "bare"
    shutil.copytree(folders["worse"], bare)
    (bare / "per_query.parquet").unlink()
    error = refusal("compare", bare, folders["same"], "--baseline", folders["base"], "--fail-on", "worse")
    assert "bare: differences: found none of worse" in error


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--fail-on", "worze"), "found 'worze'; wanted one of worse, undecided, text-bias (did you mean worse?)"),
        (("--baseline", "BASE", "--reference", "base"), "--baseline: found also --reference; wanted one of the two"),
        (("--baseline", "ALL"), "--baseline: models: found 3 in "),
        (("--baseline", "nowhere"), "nowhere: results: found nothing there"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_in_one_line(folders, refusal, options, part):
    places = {"BASE": folders["base"], "ALL": folders["base"].parent}
    assert part in refusal("compare", folders["same"], *(places.get(each, each) for each in options))


@pytest.mark.parametrize("command", ["compare", "leaderboard"])
def test_the_benchmarks_of_the_results_and_this_software_are_cited(command, folders, tmp_path, capsys):
    choice_run(tmp_path / "choices", "one", 60)
    assert main([command, str(folders["base"]), str(tmp_path), "--cite"]) == 0
    entries = re.findall(r"^@\w+\{(\w+),", capsys.readouterr().out, re.MULTILINE)
    assert entries == ["rococo_jax", "rococo", "sugarcrepe"]
