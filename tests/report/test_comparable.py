"""Who is compared with whom: decided for each variant of each benchmark, whatever else a file contains."""

import itertools
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli.main import main
from rococo_jax.evaluation.sections import merge
from rococo_jax.report import write_report
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.comparison import compare_groups
from tests.report.test_kinds import choice_run
from tests.support.made_runs import make_run
from tests.support.pages import results_of


def parts(model: str, **data: str) -> dict:
    """Results of several benchmarks, each with one task of its name, by the hash of its data."""
    results = results_of(model)
    for part in ("tasks", "intervals"):
        results[part] = {name: results[part]["image_to_text"] for name in data}
    results["kinds"] = dict.fromkeys(data, "rank")
    results["fingerprint"]["data"] = {name: {"captions": sha256} for name, sha256 in data.items()}
    results["benchmarks"] = {name: {"request": {"tasks": [name]}, "tasks": [name], "notes": []} for name in data}
    return results


def shared(groups) -> dict[str, set[frozenset[str]]]:
    """The models that share each task, whatever the order of groups and models."""
    found: dict[str, set[frozenset[str]]] = {}
    for group in groups:
        for task in {task for run in group.runs for task in run.tasks}:
            found.setdefault(task, set()).add(frozenset(run.label for run in group.runs if task in run.tasks))
    return found


def grouped(tmp_path, all_results, order=None):
    folders = []
    for results in all_results:
        folder = tmp_path / results["model"]
        folder.mkdir(exist_ok=True)
        (folder / "results.json").write_text(json.dumps(results))
        folders.append(folder)
    return group_by_fingerprint(load_results([folders[place] for place in order or range(len(folders))]))


A, B, C = parts("A", choices="1"), parts("B", classes="2"), parts("C", choices="1", classes="2")
D = parts("D", choices="other", classes="2")


@pytest.mark.parametrize("members", [(A, B, C), (A, C, D), (A, B, C, D)])
def test_which_models_are_comparable_on_a_task_does_not_depend_on_order_or_other_tasks(tmp_path, members):
    orders = itertools.permutations(range(len(members)))
    found = [shared(grouped(tmp_path, members, order)) for order in orders]
    assert all(each == found[0] for each in found)
    labels = {results["model"] for results in members}
    assert found[0]["classes"] == {frozenset({"B", "C", "D"} & labels)}
    assert found[0]["choices"] == {frozenset(each & labels) for each in ({"A", "C"}, {"D"}) if each & labels}


def test_only_the_benchmark_that_differs_has_a_separate_section(tmp_path):
    first, second = grouped(tmp_path, (A, C, D))
    assert [[*run.tasks] for run in first.runs] == [["choices"], ["choices", "classes"], ["classes"]]
    assert [(run.label, [*run.tasks]) for run in second.runs] == [("D", ["choices"])]
    assert second.differences == (("data.choices.captions", "1", "other"),)


def test_results_without_a_recorded_scoring_have_its_first_version(tmp_path):
    one, other, third = (parts(name, choices="1") for name in ("one", "other", "third"))
    other["benchmarks"]["choices"]["scoring"] = {"rank": 1}
    third["benchmarks"]["choices"]["scoring"] = {"rank": 2}
    assert shared(grouped(tmp_path, (one, other, third))) == {
        "choices": {frozenset({"one", "other"}), frozenset({"third"})}
    }


def test_a_different_request_for_one_variant_leaves_the_others_in_one_table(tmp_path):
    one, other = parts("one", rococo="1"), parts("other", rococo="1")
    for results, sha256 in ((one, "x"), (other, "y")):
        results["benchmarks"]["rococo"]["request"]["variants"] = {"danger": {"from": "danger", "sha256": sha256}}
    first, second = grouped(tmp_path, (one, other))
    unaltered = ["clean", "same_concept"]
    assert [list(run.tasks["rococo"]) for run in first.runs] == [[*unaltered, "danger"], unaltered]
    assert [list(run.tasks["rococo"]) for run in second.runs] == [["danger"]]
    assert second.differences == (("variants danger of rococo, danger", "x", "y"),)


def under_the_name(folder, name: str) -> None:
    """Rewrite results of `choice_run` as those of a benchmark of this name."""
    text = (folder / "results.json").read_text().replace("sugarcrepe", name)
    results = json.loads(text)
    results["benchmarks"] = {name: {"request": {"tasks": [name]}, "tasks": [name], "notes": []}}
    (folder / "results.json").write_text(json.dumps(results))
    table = pq.read_table(folder / "per_query.parquet")
    names = pa.array([name] * len(table))
    pq.write_table(table.set_column(table.column_names.index("task"), "task", names), folder / "per_query.parquet")


def test_the_same_data_under_two_names_is_compared(tmp_path):
    names = ("choices", "photos_choices")
    for seed, name in enumerate(names):
        under_the_name(choice_run(tmp_path / name, f"model of {name}", 30 + 50 * seed, seed), name)
    for order in (names, names[::-1]):
        groups = group_by_fingerprint(load_results([tmp_path / name for name in order]))
        assert len(groups) == 1 and all(set(run.tasks) == {order[0], "word_game"} for run in groups[0].runs)
        rows = compare_groups(groups)[0, order[0]].rows
        sign = 1 if order == names else -1
        differences = {row.variant: row.points for row in rows if row.metric == "ota"}
        values = [json.loads((tmp_path / name / "results.json").read_text())["tasks"][name] for name in names]
        assert differences == pytest.approx(
            {variant: sign * (values[1][variant]["ota"] - values[0][variant]["ota"]) for variant in differences}
        )
        assert {"add_att", "replace_rel", "swap_att", "mean"} <= differences.keys()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three models: two measured choices, which the first did not."""
    folder = tmp_path_factory.mktemp("three")
    for seed, name in enumerate(("base", "one", "other")):
        make_run(folder / name, name, noise=1.0 + seed, seed=seed)
        if seed:
            choices = choice_run(folder / "choices" / name, name, 40 + 20 * seed, seed)
            join_files(folder / name, choices)
    shutil.copytree(folder / "other", folder / "bare")
    (folder / "bare" / "per_query.parquet").unlink()
    return folder


def join_files(folder, other) -> None:
    """Add the task `sugarcrepe` of other results to those in a folder."""
    one, two = (json.loads((each / "results.json").read_text()) for each in (folder, other))
    two["fingerprint"]["model"] = one["fingerprint"]["model"]
    two["tasks"].pop("word_game")
    for results, name in ((one, "rococo"), (two, "sugarcrepe")):
        results["benchmarks"] = {name: {"request": {}, "tasks": [*results["tasks"]], "notes": []}}
    (folder / "results.json").write_text(json.dumps(merge(one, two)))
    tables = [pq.read_table(each / "per_query.parquet") for each in (folder, other)]
    pq.write_table(pa.concat_tables(tables, promote_options="permissive"), folder / "per_query.parquet")


def test_tasks_missing_for_the_reference_are_compared_with_the_first_model_that_has_them(three, capsys):
    for order in (("base", "one", "other"), ("one", "base", "other"), ("other", "one", "base")):
        assert main(["compare", *(str(three / name) for name in order), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        with_choices = [name for name in order if name != "base"]
        assert {(row["model"], row["reference"]) for row in rows if row["task"] == "sugarcrepe"} == {
            (with_choices[1], with_choices[0])
        }
        assert {row["reference"] for row in rows if row["task"] != "sugarcrepe"} == {order[0]}


def test_models_and_metrics_that_are_not_compared_are_named(three, capsys, refusal):
    line = f"other (bare): not compared: {three / 'bare'} has no per_query.parquet"
    for more in ([], ["--json"]):
        assert main(["compare", *(str(three / name) for name in ("base", "one", "bare", "other")), *more]) == 0
        said = capsys.readouterr()
        assert line in said.err and (more or "has no per_query.parquet" in said.out)
    page, _ = write_report([three / name for name in ("base", "one", "bare", "other")], three / "page.html")
    assert "has no per_query.parquet" in page.read_text()
    assert "has no per_query.parquet; wanted results" in refusal("compare", three / "bare", three / "one")
    two = [three / "one", three / "other"]
    assert "--metrics: name: found Drop (drop): not compared: it has no counts" in refusal(
        "compare", *two, "--metrics", "drop"
    )
    assert main(["compare", *map(str, two), "--metrics", "r1,drop", "--json"]) == 0
    said = capsys.readouterr()
    assert "Drop (drop): not compared: it has no counts" in said.err
    assert {row["metric"] for row in json.loads(said.out)} == {"r1"}


def test_the_error_for_results_without_a_common_benchmark_lists_their_benchmarks(tmp_path, refusal):
    grouped(tmp_path, (A, B))
    error = refusal("compare", tmp_path / "A", tmp_path / "B")
    assert "Choices: not compared: only A has results of it; Classes: not compared: only B has results of it" in error


def test_a_variant_that_is_missing_for_the_reference_is_named(tmp_path, capsys):
    folders = [make_run(tmp_path / name, name, noise=1.0, seed=seed) for seed, name in enumerate("ab")]
    results = json.loads((folders[0] / "results.json").read_text())
    for part in ("tasks", "intervals", "variants"):
        results[part]["image_to_text"].pop("danger", None)
    (folders[0] / "results.json").write_text(json.dumps(results))
    assert main(["compare", *map(str, folders), "--json"]) == 0
    assert "b: Image to text, Danger: not compared: a has no results of it" in capsys.readouterr().err


def test_models_of_the_same_name_are_distinguished_by_the_shortest_part_of_their_folders(tmp_path):
    results = [
        (tmp_path / version / "plain" / "results.json", parts("plain", choices="1")) for version in ("old", "new")
    ]
    (group,) = group_by_fingerprint(results)
    assert [run.label for run in group.runs] == ["plain (old/plain)", "plain (new/plain)"]


def test_a_model_in_two_folders_has_one_row_in_a_table(tmp_path):
    halves = []
    for name in ("plain", "robust"):
        for task, sha256 in (("choices", "1"), ("classes", "2")):
            results = parts(name, **{task: sha256})
            results["fingerprint"]["model"] = {"weights": name}
            halves.append((tmp_path / name / task / "results.json", results))
    for order in (halves, halves[::-1]):
        (group,) = group_by_fingerprint(order)
        assert {run.label: set(run.tasks) for run in group.runs} == {
            name: {"choices", "classes"} for name in ("plain", "robust")
        }
        assert all(run.file_of(task).path.parent.name == task for run in group.runs for task in run.tasks)
