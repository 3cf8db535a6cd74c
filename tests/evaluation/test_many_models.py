"""Many models in one `rococo evaluate`: lists and patterns, one compilation an architecture, nothing left in memory."""

import gc
import json
from collections import Counter
from pathlib import Path

import jax
import pytest

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.model_directory import restore_parameters
from rococo_jax.cli.main import main
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation import model_series, runner
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.model_list import read_models
from rococo_jax.evaluation.model_series import evaluate_all
from tests.support.refusals import refused
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.world import noise, write_world

SETTINGS = Settings(mixed_galleries=())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six images with five captions each, and one variant."""
    captions = [random_captions(5, number, longest=5) for number in range(6)]
    altered = {"danger": "{} q".format}
    return write_world(tmp_path_factory.mktemp("data"), captions, picture=noise(6, 8, 6), altered=altered)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three models of one architecture and different weights."""
    folder = tmp_path_factory.mktemp("models")
    for seed in range(3):
        save_model(folder / f"m{seed}", tiny_encoder(seed=seed, name=f"m{seed}"))
    return folder


def run_all(sources, data, out):
    benchmarks = open_benchmarks(SETTINGS, images=data / "images", annotations=data / "annotations")
    folders = {str(source): out / source.name for source in sources}
    return evaluate_all(folders, out, benchmarks, SETTINGS, EmbeddingCache(None))


def journal(out) -> list[dict]:
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]


@pytest.fixture
def compiled():
    """The names of what is compiled from here on, from JAX's own monitoring."""
    seen = []

    def listen(event: str, _: float, **about) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_models_of_one_architecture_are_compiled_once_and_released_from_memory(
    models, data, tmp_path, compiled, monkeypatch
):
    # The tests keep parameters that they have read.
    monkeypatch.setattr("rococo_jax.encoders.loading.restore_parameters", restore_parameters)
    jax.clear_caches()  # of what other tests compiled
    run_all([models / "m0"], data, tmp_path / "first")
    assert len(compiled) > 3  # the first does compile, and the listener hears it
    del compiled[:]
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    results, failed = run_all([models / f"m{seed}" for seed in (1, 2)], data, tmp_path / "others")
    assert not failed and compiled == []
    assert [array.shape for array in jax.live_arrays() if id(array) not in before] == []
    assert len({json.dumps(each["tasks"]) for each in results}) == 2


def test_an_error_of_one_model_is_recorded_and_the_others_are_evaluated(models, data, tmp_path, monkeypatch, capsys):
    evaluate_model = runner.evaluate_model

    def out_of_memory(encoder, *rest, **options):
        if encoder.name == "m1":
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return evaluate_model(encoder, *rest, **options)

    monkeypatch.setattr(runner, "evaluate_model", out_of_memory)
    results, failed = run_all([models / f"m{seed}" for seed in (1, 2)], data, tmp_path)
    assert [each["model"] for each in results] == ["m2"] and failed == [str(models / "m1")]
    entries = journal(tmp_path)
    assert [entry["event"] for entry in entries] == ["failed", "evaluated"]
    assert entries[0]["error"].startswith("RuntimeError: RESOURCE_EXHAUSTED") and "Traceback" in entries[0]["traceback"]
    assert all(entry["seconds"] >= 0 and entry["time"].endswith("Z") for entry in entries)
    assert "Traceback" not in capsys.readouterr().err


def command(data, out, *more) -> list[str]:
    folders = ["--images", data / "images", "--annotations", data / "annotations", "--out", out]
    return [*map(str, ["evaluate", *folders, "--mixed-galleries", "none", "--no-cache", *more])]


def names_in(out) -> set[str]:
    return {path.parent.name for path in out.rglob("results.json")}


@pytest.mark.slow
def test_a_list_with_a_broken_model_evaluates_the_others_and_resumes_and_reports_progress(
    models, data, tmp_path, monkeypatch, capsys
):
    out, broken = tmp_path / "out", tmp_path / "broken"
    broken.mkdir()
    lines = ["# all there are", f"{models}/m[01]", "", f"renamed={models}/m2  # the third", broken, f"{models}/m0"]
    (tmp_path / "models.txt").write_text("".join(f"{line}\n" for line in lines))
    words = command(data, out, "--models", tmp_path / "models.txt")
    assert main(words) == 1
    said = capsys.readouterr()
    assert "broken skipped" in said.err and "1 of 4 models failed" in said.err
    assert "evaluating 4 models: " in said.err and " broken " not in said.out
    assert names_in(out) == {"m0", "m1", "renamed"}
    assert json.loads((out / "renamed" / "results.json").read_text())["model"] == "renamed"
    assert all((out / f"report.{suffix}").is_file() for suffix in ("html", "csv", "md"))
    assert "renamed" in (out / "report.md").read_text()
    first = {path: path.read_bytes() for path in out.rglob("results.json")}
    pixels_made_for = []
    monkeypatch.setattr(model_series, "announce_pixels", lambda sources, _: pixels_made_for.extend(sources))
    assert main([*words, "--no-report"]) == 1
    assert {path: path.read_bytes() for path in first} == first and pixels_made_for == [str(broken)]
    events = Counter(entry["event"] for entry in journal(out))
    assert events == {"started": 2, "evaluated": 3, "kept": 3, "failed": 2}


@pytest.mark.slow
def test_each_part_of_a_list_is_evaluated_once_without_a_report(models, data, tmp_path, capsys):
    words = command(data, tmp_path, f"{models}/m*", "--tasks", "image_to_text")
    assert main([*words, "--shard", "1/2", "--precision", "float32", "--batch-size", "16"]) == 0
    assert "evaluating 2 models: towers in float32" in capsys.readouterr().err
    assert main([*words, "--batch-size", "0"]) == 2
    assert "rococo: --batch-size: number: found 0; wanted a whole number, 1 or more" in capsys.readouterr().err
    assert names_in(tmp_path) == {"m0", "m2"} and not (tmp_path / "report.html").exists()
    assert main([*words, "--shard", "2/2"]) == 0
    assert names_in(tmp_path) == {"m0", "m1", "m2"}
    assert main([*words, "--shard", "3/2"]) == 2


def test_errors_in_lists_of_models_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("a/model", "b/model", "c", "runs/sc-vc/model", "runs/sc-vc/checkpoints/400"):
        Path(folder).mkdir(parents=True)
    Path("runs/sc-vc/metrics.jsonl").write_text("")
    Path("notes.md").write_text("")  # no model
    for sources, names in (
        (["[a-cn]*"], ["a", "b", "c"]),
        (["one=a/model", "two=b/model"], ["one", "two"]),
        (["runs/*/model", "runs/sc-vc/checkpoints/400"], ["sc-vc", "sc-vc@400"]),
    ):
        assert [model.name for model in read_models(sources)] == names
    assert [model.source for model in read_models(["org/clip-b32", "here=org/other"])] == ["org/clip-b32", "org/other"]
    long = f"m={'a' * 300}"  # longer than any file system's names
    assert [model.name for model in read_models([long])] == ["m"]
    refused("name: found .a/b.; wanted a name without a slash", read_models, ["a/b=file.py:f"])
    refused("'model' for b/model, which is also the name of a/model", read_models, ["[ab]/model"])
    refused(r"nothing matching 'x\*'", read_models, ["x*"])
    Path("list").write_text("# nothing yet\n")
    refused("list: models: found none", read_models, [], "list")
    Path("list").write_text("a/model\nb/model\n")
    refused("list, line 2", read_models, [], "list")
    refused("nothing there", read_models, [], "missing")
