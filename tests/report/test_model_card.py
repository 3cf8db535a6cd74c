"""A model card says what results say, in the hub's own form, and goes to the hub without its token being printed."""

import base64
import http.server
import json
import threading
from typing import ClassVar

import pytest
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from rococo_jax.cli import export
from rococo_jax.errors import InputError
from rococo_jax.metrics import METRICS
from rococo_jax.report.model_card import model_card, push, write_card
from tests.support import reference_models as hf
from tests.support.commands import run_command
from tests.support.made_runs import make_run
from tests.support.models import read_model
from tests.support.refusals import refused

TOKEN = "hf_never_printed"


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as an upload needs."""

    files: ClassVar[dict[str, str]] = {}
    refuses = False

    def log_message(self, *said):
        pass

    def do_GET(self):
        self.answer({"sha": "0" * 40, "id": "me/clip"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["authorization"] == f"Bearer {TOKEN}"
        if self.refuses:
            return self.answer({"error": f"not yours, {TOKEN}"}, 403)
        if "preupload" in self.path:
            files = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for each in json.loads(body)["files"]]  # fmt: skip
            return self.answer({"files": files})
        if "/commit/" in self.path:
            lines = map(json.loads, body.decode().splitlines())
            self.files.update(
                {each["value"]["path"]: each["value"]["content"] for each in lines if each["key"] == "file"}
            )
        return self.answer({"url": f"http://127.0.0.1:{self.server.server_address[1]}/me/clip", "success": True,
                            "commitOid": "1" * 40, "commitUrl": "http://127.0.0.1/me/clip/commit/1"})  # fmt: skip

    def answer(self, value, code=200):
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    Hub.files, Hub.refuses = {}, False
    yield Hub
    server.shutdown()


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


def test_a_folder_is_uploaded_and_a_refusal_is_one_line_without_the_token(hub, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").write_text("# clip\n")
    push(tmp_path / "model", "me/clip")
    assert set(hub.files) == {"README.md"}
    hub.refuses = True
    with pytest.raises(InputError, match=r"me/clip: hub: found .*403") as caught:
        push(tmp_path / "model", "me/clip")
    said = str(caught.value) + "".join(capsys.readouterr())
    assert TOKEN not in said and "\n" not in str(caught.value)


def test_the_export_command_uploads_a_card_of_the_models_own_results(hub, tmp_path):
    folder, path = hf.saved(hf.clip(), tmp_path / "clip"), make_run(tmp_path / "run", "clip", 0.5) / "results.json"
    options = "--card", path, "--licence", "mit", "--push", "me/clip"
    refused("those of this model", run_command, export, folder, tmp_path / "out", *options)
    stored = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    stored["fingerprint"]["model"]["weights"] = read_model(folder).describe()["weights"]
    path.write_text(json.dumps(stored))
    run_command(export, folder, tmp_path / "out", *options)
    assert ModelCard(base64.b64decode(hub.files["README.md"]).decode()).data.license == "mit"
    assert set(hub.files) == {each.name for each in (tmp_path / "out").iterdir()}


def test_results_of_two_models_have_no_one_card(tmp_path):
    paths = [make_run(tmp_path / name, name, 0.5) / "results.json" for name in ("one", "other")]
    refused("models: found one, other; wanted results of one model", model_card, paths)
    message = "fingerprint: found results of other weights, of 'one'; wanted those of this"
    refused(message, model_card, paths[:1], weights="other")
