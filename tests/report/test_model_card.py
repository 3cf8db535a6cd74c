"""A model card says what results say, in the hub's own form."""

import json

import pytest
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from rococo_jax.cli import export
from rococo_jax.metrics import METRICS
from rococo_jax.report.model_card import model_card, write_card
from tests.support import reference_models as hf
from tests.support.commands import run_command
from tests.support.made_runs import make_run
from tests.support.models import read_model
from tests.support.refusals import refused


def test_the_card_is_one_that_the_hub_reads_and_has_every_figure(tmp_path):
    path = make_run(tmp_path / "run", "clip", 0.5) / "results.json"
    write_card(tmp_path, model_card([path], "mit"), [path])
    loaded = ModelCard.load(tmp_path / "README.md")
    name, results = model_index_to_eval_results(metadata_load(tmp_path / "README.md")["model-index"])
    stored = json.loads(path.read_text())
    assert name == stored["model"] and loaded.data.license == "mit"
    found = {
        (each.task_name, each.dataset_config.partition("/")[2], each.metric_type): each.metric_value for each in results
    }
    assert found == {
        (task, variant, metric): value
        for task, variants in stored["tasks"].items()
        for variant, metrics in variants.items()
        for metric, value in metrics.items()
        if value is not None and metric in METRICS
    }
    assert all(len(each.dataset_args["fingerprint"]) == 64 for each in results)
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG") and "![Figures](figures.png)" in loaded.text


@pytest.mark.parametrize(
    ("task", "kind", "metrics", "data", "task_type", "benchmark"),
    [
        ("winoground", "group_choice", ("group_score",), ("winoground",), "image-text-choice", "winoground"),
        ("sugarcrepe", "choice", ("ota",), ("rococo", "sugarcrepe"), "image-text-choice", "sugarcrepe"),
        ("sugarcrepe_pp", "text_choice", ("tot",), ("sugarcrepe", "sugarcrepe_pp"), "sentence-similarity",
         "sugarcrepe_pp"),
        ("negbench_text_to_image", "rank", ("r1",), ("rococo", "negbench"), "image-text-retrieval", "negbench"),
        ("text_to_image", "rank", ("r1",), ("rococo",), "image-text-retrieval", "rococo"),
        ("pets", "classify", ("top1",), ("pets",), "zero-shot-image-classification", "pets"),
    ],
)  # fmt: skip
def test_every_kind_of_task_has_a_card(tmp_path, task, kind, metrics, data, task_type, benchmark):
    path = make_run(tmp_path / "run", "clip", 0.5) / "results.json"
    stored = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    tasks = {task: {"mean": dict.fromkeys(metrics, 40.0) | {"fr1": 0.0}}}
    if "rococo" in data:
        tasks["image_to_text"] = {"clean": {"r1": 50.0}}
    stored |= {"tasks": tasks, "kinds": {task: kind}, "intervals": {}, "sizes": {}}
    stored["fingerprint"] |= {"data": {name: {"hash": name} for name in data}}
    path.write_text(json.dumps(stored))
    write_card(tmp_path, model_card([path]), [path])
    _, results = model_index_to_eval_results(metadata_load(tmp_path / "README.md")["model-index"])
    found = {each.task_name: (each.task_type, each.dataset_type) for each in results}
    assert found[task] == (task_type, benchmark)
    assert found.get("image_to_text", ("", "rococo"))[1] == "rococo" and (tmp_path / "figures.png").exists()


def test_the_export_command_writes_a_card_of_the_models_own_results(tmp_path):
    folder, path = hf.saved(hf.clip(), tmp_path / "clip"), make_run(tmp_path / "run", "clip", 0.5) / "results.json"
    options = "--card", path, "--licence", "mit"
    refused("those of this model", run_command, export, folder, tmp_path / "out", *options)
    stored = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    stored["fingerprint"]["model"]["weights"] = read_model(folder).describe()["weights"]
    path.write_text(json.dumps(stored))
    run_command(export, folder, tmp_path / "out", *options)
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "mit"


def test_results_of_two_models_have_no_one_card(tmp_path):
    paths = [make_run(tmp_path / name, name, 0.5) / "results.json" for name in ("one", "other")]
    refused("models: found one, other; wanted results of one model", model_card, paths)
    message = "fingerprint: found results of other weights, of 'one'; wanted those of this"
    refused(message, model_card, paths[:1], weights="other")
