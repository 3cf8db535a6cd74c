"""A model card says what results say, in the hub's own form."""

import json

from huggingface_hub import ModelCard, metadata_load

from rococo_jax.cli import export
from rococo_jax.report.model_card import model_card, write_card
from tests.support import reference_models as hf
from tests.support.commands import run_command
from tests.support.made_runs import make_run
from tests.support.models import read_model
from tests.support.refusals import refused


def test_the_hub_can_read_the_model_card_with_its_picture_and_tables(tmp_path):
    path = make_run(tmp_path / "run", "clip", 0.5) / "results.json"
    write_card(tmp_path, model_card([path], "mit"), [path])
    loaded = ModelCard.load(tmp_path / "README.md")
    assert loaded.data.license == "mit" and loaded.data.model_name == "clip"
    # The hub's form of results is a file of its own; see `rococo export-results`.
    assert "model-index" not in metadata_load(tmp_path / "README.md")
    value = json.loads(path.read_text())["tasks"]["image_to_text"]["clean"]["r1"]
    assert f"{value:.1f}" in loaded.text
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG") and "![Figures](figures.png)" in loaded.text


def test_the_export_command_writes_a_card_with_the_results_of_the_model(tmp_path):
    folder, path = hf.saved(hf.clip(), tmp_path / "clip"), make_run(tmp_path / "run", "clip", 0.5) / "results.json"
    options = "--card", path, "--licence", "mit"
    refused("those of this model", run_command, export, folder, tmp_path / "out", *options)
    stored = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    stored["fingerprint"]["model"]["weights"] = read_model(folder).describe()["weights"]
    path.write_text(json.dumps(stored))
    run_command(export, folder, tmp_path / "out", *options)
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "mit"


def test_a_model_card_of_two_models_is_refused(tmp_path):
    paths = [make_run(tmp_path / name, name, 0.5) / "results.json" for name in ("one", "other")]
    refused("models: found one, other; wanted results of one model", model_card, paths)
    message = "fingerprint: found results of other weights, of 'one'; wanted those of this"
    refused(message, model_card, paths[:1], weights="other")
