"""Exported results are read by the hub's own classes, and have the fields that Every Eval Ever's schema requires."""

import hashlib
import json
import math
import os
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from rococo_jax.cli import export_results
from rococo_jax.metrics import metric_of
from rococo_jax.report.hub_results import hub_data_set
from tests.support.commands import run_command
from tests.support.made_runs import make_run
from tests.support.refusals import refused


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def winoground(tmp_path) -> Path:
    """Results that name the benchmark winoground, which has a data set on the hub."""
    folder = make_run(tmp_path / "run", "me/clip", 0.5)
    path = folder / "results.json"
    stored = json.loads(path.read_text())
    metrics = {"group_score": 8.0, "text_score": 30.75, "image_score": 11.25}
    stored |= {"tasks": {"winoground": {"all": metrics}}, "kinds": {"winoground": "group_choice"}}
    stored |= {"intervals": {"winoground": {"all": {"group_score": [5.5, 10.75]}}}}
    stored |= {"sizes": {"winoground": {"all": {"items": 400, "images": 800}}}, "variants": {}, "chance": {}}
    headline = {"variant": "all", "metric": "group_score", "pooling": "items", "source": "the paper"}
    stored |= {"headlines": {"winoground": headline}, "benchmarks": {"winoground": {"tasks": ["winoground"]}}}
    stored |= {"data": {"winoground": {"coverage": {"present": 800, "wanted": 800, "complete": True}}}}
    path.write_text(json.dumps(stored))
    (folder / "per_query.parquet").unlink()
    os.utime(path, (1_800_000_000, 1_800_000_000))
    return folder


def test_the_hub_library_reads_the_headline_with_dataset_and_date_and_source(winoground, tmp_path):
    out = tmp_path / "out"
    run_command(export_results, winoground, "--to", "hub", "--out", out, "--source", "https://example.org")
    assert [*files_of(out)] == [".eval_results/winoground.yaml"]
    (entry,) = parse_eval_result_entries(yaml.safe_load((out / ".eval_results/winoground.yaml").read_text()))
    assert entry == EvalResultEntry(
        dataset_id="facebook/winoground",
        task_id="winoground",
        value=8.0,
        dataset_revision="b400e173549071916ad1b3d449293bc8d8b4b763",
        date="2027-01-15",
        source_url="https://example.org",
        source_name="rococo_jax",
        notes=entry.notes,
    )
    assert "5.50 to 10.75" in entry.notes and "400 items" in entry.notes and "protocol paper" in entry.notes


def test_the_date_of_copied_results_is_read_from_their_journal(winoground, tmp_path):
    entries = [
        {"time": "2026-03-01T02:00:00Z", "event": "evaluated", "model": "me/clip"},
        {"time": "2026-03-04T02:00:00Z", "event": "kept", "model": "me/clip"},
        {"time": "2026-03-05T02:00:00Z", "event": "evaluated", "model": "another"},
    ]
    (winoground / "journal.jsonl").write_text("".join(json.dumps(each) + "\n" for each in entries) + "{cut")
    run_command(export_results, winoground, "--to", "hub", "--out", tmp_path / "out")
    (entry,) = yaml.safe_load((tmp_path / "out/.eval_results/winoground.yaml").read_text())
    assert entry["date"] == "2026-03-01"


def test_a_dataset_of_the_user_is_used_and_incomplete_benchmarks_are_excluded(winoground, tmp_path, capsys):
    words = "--to", "hub", "--dataset", "winoground=me/copy:group"
    run_command(export_results, winoground, *words, "--out", tmp_path / "out")
    (entry,) = yaml.safe_load((tmp_path / "out/.eval_results/winoground.yaml").read_text())
    assert entry["dataset"] == {"id": "me/copy", "task_id": "group"}
    path = winoground / "results.json"
    stored = json.loads(path.read_text())
    coverage = {"present": 800, "wanted": 800, "complete": False, "limit": 10}
    stored["data"]["winoground"] = {"image_count": 10, "coverage": coverage}
    path.write_text(json.dumps(stored))
    refused("10 of 800 images", run_command, export_results, winoground, *words, "--out", tmp_path / "part")
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("winogruond=me/copy", "--dataset: task: found 'winogruond'.*did you mean winoground"),
        ("winoground=copy", "--dataset: winoground: found copy; wanted ORG/NAME"),
    ],
)
def test_a_misspelt_dataset_is_refused(winoground, tmp_path, option, message):
    words = "--to", "hub", "--out", tmp_path / "out", "--dataset", option
    refused(message, run_command, export_results, winoground, *words)


def test_results_without_a_dataset_on_the_hub_and_folders_without_results_are_refused(tmp_path):
    folder = make_run(tmp_path / "run", "clip", 0.5)
    refused("results: found .*; wanted --dataset", run_command, export_results, folder, "--to", "hub", "--out", "x")
    (tmp_path / "empty").mkdir()
    for form in ("hub", "every-eval-ever"):
        words = tmp_path / "empty", "--to", form, "--out", tmp_path / "out"
        refused("a folder without results.json", run_command, export_results, *words)
    assert not (tmp_path / "out").exists()


def test_datasets_on_the_hub_are_inferred_from_the_addresses_of_files():
    assert hub_data_set("mmvp") == ("MMVP/MMVP_VLM", "211372d5357398f914d806d07dc305aea1f257d2")
    assert hub_data_set("colorswap") == ("stanfordnlp/colorswap", None)
    assert hub_data_set("rococo") is None


# Facts of the schema of Every Eval Ever, version 0.3.0: the fields that it requires, by object.
REQUIRED = {
    "": "schema_version evaluation_id retrieved_timestamp source_metadata model_info eval_library evaluation_results",
    "source_metadata": "source_type source_organization_name evaluator_relationship",
    "eval_library": "name version",
    "model_info": "name id additional_details",
    "detailed_evaluation_results": "format file_path",
}
RESULT = "evaluation_name source_data metric_config score_details"
SAMPLE = "schema_version evaluation_id model_id evaluation_name sample_id interaction_type input output"
SAMPLE += " answer_attribution evaluation"
SAMPLE_FIELDS = {*SAMPLE.split(), "evaluation_result_id", "metadata"}
FILE = re.compile(r"data/[^/]+/[^/]+/[^/]+/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.json")


def details_of(value: object) -> list[dict]:
    """All objects below a value whose entries must be texts."""
    if isinstance(value, list):
        return [each for entry in value for each in details_of(entry)]
    if not isinstance(value, dict):
        return []
    texts = [each for name, each in value.items() if name in ("additional_details", "details", "metadata")]
    return texts + [each for entry in value.values() for each in details_of(entry)]


def test_a_record_fulfils_the_schema_and_contains_every_number_of_the_results(tmp_path):
    folder, out = make_run(tmp_path / "run", "me/clip", 0.5), tmp_path / "out"
    run_command(export_results, folder, "--to", "every-eval-ever", "--out", out, "--organization", "Lab")
    name, samples_name = sorted(files_of(out), key=len)
    assert FILE.fullmatch(name) and name.startswith("data/rococo_jax/me/clip/")
    record, stored = json.loads((out / name).read_text()), json.loads((folder / "results.json").read_text())
    for place, fields in REQUIRED.items():
        assert {*fields.split()} <= (record[place] if place else record).keys()
    assert record["schema_version"] == "0.3.0" and record["model_info"]["id"] == "me/clip"
    assert record["source_metadata"]["source_type"] == "evaluation_run"
    values, intervals = {}, {}
    for result in record["evaluation_results"]:
        assert {*RESULT.split()} <= result.keys() and result["source_data"].keys() >= {"dataset_name", "source_type"}
        metric, score = result["metric_config"], result["score_details"]
        low, high = (float(metric[end]) for end in ("min_score", "max_score"))
        assert metric["score_type"] == "continuous" and low <= score["score"] <= high and math.isfinite(score["score"])
        task, variant, measure = result["evaluation_result_id"].split("/")
        values[task, variant, measure] = score["score"]
        assert metric["lower_is_better"] == (metric_of(measure).better == "lower")
        interval = score.get("uncertainty", {}).get("confidence_interval")
        intervals[task, variant, measure] = interval and [interval["lower"], interval["upper"]]
    numbers = {
        (task, variant, measure): value
        for task, variants in stored["tasks"].items()
        for variant, metrics in variants.items()
        for measure, value in metrics.items()
        if value is not None and not measure.endswith("_std")
    }
    assert values == numbers
    assert intervals == {key: stored["intervals"][key[0]][key[1]].get(key[2]) for key in numbers}
    about = record["detailed_evaluation_results"]
    contents = (out / samples_name).read_bytes()
    assert about["file_path"] == samples_name == name.removesuffix(".json") + "_samples.jsonl"
    assert about["checksum"] == hashlib.sha256(contents).hexdigest() and about["format"] == "jsonl"
    samples = [json.loads(line) for line in contents.decode().splitlines()]
    assert about["total_rows"] == len(samples) == pq.read_metadata(folder / "per_query.parquet").num_rows
    for sample in samples:
        assert {*SAMPLE.split()} <= sample.keys() <= SAMPLE_FIELDS
        assert (sample["evaluation_id"], sample["model_id"]) == (record["evaluation_id"], "me/clip")
    assert all(isinstance(text, str) for each in details_of([record, samples]) for text in each.values())


def test_the_mean_of_the_samples_equals_the_metric_of_the_record(tmp_path):
    folder, out = make_run(tmp_path / "run", "clip", 0.5), tmp_path / "out"
    run_command(export_results, folder, "--to", "every-eval-ever", "--out", out)
    name, samples_name = sorted(files_of(out), key=len)
    assert name.startswith("data/rococo_jax/unknown/clip/")
    scores: dict[str, list[float]] = {}
    for line in (out / samples_name).read_text().splitlines():
        sample = json.loads(line)
        scores.setdefault(sample["evaluation_result_id"], []).append(sample["evaluation"]["score"])
        assert sample["evaluation"]["is_correct"] == (sample["metadata"]["top1_kind"] == "own")
    results = json.loads((out / name).read_text())["evaluation_results"]
    values = {each["evaluation_result_id"]: each["score_details"]["score"] for each in results}
    assert len(scores) == 5 and all(
        math.isclose(100 * sum(each) / len(each), values[result]) for result, each in scores.items()
    )


def test_the_same_results_give_the_same_bytes_and_an_existing_folder_is_refused(tmp_path):
    make_run(tmp_path / "run" / "a", "data/a: b", 0.5)
    make_run(tmp_path / "run" / "b", "b", 0.7)
    words = tmp_path / "run", "--to", "every-eval-ever"
    for out in ("one", "two"):
        run_command(export_results, *words, "--out", tmp_path / out)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert {path.split("/", 4)[2:4][0] for path in files_of(tmp_path / "one")} == {"data_", "unknown"}
    refused("already there", run_command, export_results, *words, "--out", tmp_path / "one")
