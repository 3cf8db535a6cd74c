"""Test options of `rococo evaluate` that users of such tools look for."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rococo_jax
from rococo_jax.benchmarks.settings import Settings, as_tuples
from rococo_jax.benchmarks.tables import Embeddings
from rococo_jax.cli.main import main
from rococo_jax.evaluation.inputs import open_benchmarks
from tests.support.made_runs import make_run, unit
from tests.support.refusals import refused
from tests.support.tiny import random_captions
from tests.support.world import write_world

IMAGES = 6
MODEL = """
import numpy as np

class Random:
    def __init__(self, seed=0, width=4):
        self.name, self.rng, self.width, self.batches = f"random-{seed}", np.random.default_rng(seed), width, []

    def encode_image(self, images):
        assert len(images) <= 2
        return self.rng.normal(size=(len(images), self.width))

    def encode_text(self, texts):
        return self.rng.normal(size=(len(texts), self.width))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    captions = [random_captions(5, seed=number, longest=6) for number in range(IMAGES)]
    folder = write_world(tmp_path_factory.mktemp("data"), captions, altered={"danger": "{} car".format})
    (folder / "model.py").write_text(MODEL)
    return folder


def command(data, out, *options) -> list[str]:
    folders = f"--images {data}/images --annotations {data}/annotations --out {out}"
    return [*f"evaluate {data}/model.py:Random {folders} --mixed-galleries none --batch-size 2".split(), *options]


def test_the_json_option_prints_only_json_and_the_quiet_option_only_warnings(data, tmp_path, capsys):
    options = ["--json", "--quiet", "--limit", "4", "--model-arg", "seed=3", "--no-report"]
    assert main(command(data, tmp_path, *options)) == 0
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert results["model"] == "random-3" and results == json.loads((tmp_path / "results.json").read_text())
    assert results["sizes"]["image_to_text"]["clean"]["queries"] == 4
    assert results["data"]["rococo"]["coverage"] == {"present": 6, "wanted": IMAGES, "limit": 4, "complete": False}
    assert all("warning" in line for line in err.splitlines()) and "other embeddings" in err


def test_a_note_reports_a_model_at_chance_and_not_a_good_one(data, tmp_path, capsys):
    assert main(command(data, tmp_path, "--no-report")) == 0
    notes = json.loads((tmp_path / "results.json").read_text())["notes"]
    (told,) = [note for note in notes if note.startswith("image_to_text:")]
    # Five right captions of thirty for each image.
    assert "cannot be told from chance (16.7): possible reasons are too few images, an untrained model" in told
    assert told in " ".join(capsys.readouterr().out.split())
    good = json.loads((make_run(tmp_path / "good", "good", 0.1) / "results.json").read_text())
    assert not any("chance" in note for note in good["notes"])


@pytest.mark.slow
def test_the_chance_level_matches_a_random_order(data):
    """Over 30 random models R@1 is on average what `chance` says."""
    folders = {"images": data / "images", "annotations": data / "annotations"}
    (benchmark,) = open_benchmarks(Settings(mixed_galleries=()), **folders)
    rng, sizes = np.random.default_rng(1), {"originals": IMAGES, "texts": len(benchmark.texts)}
    for task in (task for task in benchmark.tasks if task.variant == "clean"):
        models = [{name: unit(rng.normal(size=(size, 8))) for name, size in sizes.items()} for _ in range(30)]
        outcomes = [task.score(Embeddings(tables)) for tables in models]
        assert outcomes[0].chance["r1"] == pytest.approx(100 / IMAGES)
        r1 = [outcome.counted.values()["r1"] for outcome in outcomes]
        assert abs(np.mean(r1) - 100 / IMAGES) < 4 * np.std(r1) / np.sqrt(len(r1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "abacus"], "--device: kind: found 'abacus'; wanted one of cpu, gpu"),
        (["--limit", "-1"], "--limit: number: found -1"),
        (["--model-arg", "seed"], "rococo: model_arg: argument: found 'seed'; wanted key=value"),
        (["--model-arg", "colour=red"], "unexpected keyword argument 'colour'"),
    ],
)
def test_bad_options_are_reported_in_one_line(data, tmp_path, refusal, options, said):
    assert said in refusal(*command(data, tmp_path / "out", *options)).splitlines()[-1]


@pytest.mark.slow
def test_a_missing_device_is_reported_in_one_line(data, tmp_path):
    words = command(data, tmp_path / "out", "--device", "tpu")
    done = subprocess.run([sys.executable, "-m", "rococo_jax", *words], capture_output=True, text=True)
    assert done.returncode == 2 and "no tpu that JAX can use" in done.stderr and "Traceback" not in done.stderr


def test_a_setting_from_python_can_be_one_value_or_several():
    several = Settings(
        tasks=("a",), corruptions=("fog",), seeds=(7,), severities=(2,), templates=("5",), corrupted_benchmarks=("b",),
        mixed_galleries=("mix_0.5",), out_images=(("coco", "x/y"),),
    )  # fmt: skip
    one = as_tuples({
        "tasks": "a", "corruptions": "fog", "seeds": 7, "severities": 2, "templates": 5, "corrupted_benchmarks": "b",
        "mixed_galleries": "mix_0.5", "out_images": {"coco": Path("x/y")},
    })  # fmt: skip
    assert Settings(**one) == several
    assert as_tuples({**one, "out_images": ("coco", "x/y"), "templates": [5], "seeds": np.int64(7)}) == one
    every = Settings(**as_tuples({"corruptions": "all"}))
    assert every == Settings(corruptions=("all",)) and len(every.corruptions) == 19
    for setting in ({"seeds": "1"}, {"severities": 2.5}, {"tasks": 1.5}, {"tasks": None}, {"out_images": "coco"}):
        refused(f"settings: {next(iter(setting))}: found ", as_tuples, setting)


def test_the_python_function_accepts_one_name_instead_of_several(data):
    folders = {"images": data / "images", "annotations": data / "annotations"}
    options = {"mixed_galleries": (), "seeds": 1, "tasks": "image_to_text", "limit": 3, "images_at_once": 2}
    results = rococo_jax.evaluate(f"{data / 'model.py'}:Random", **folders, **options)
    assert set(results["tasks"]) == {"image_to_text"}
    refused("benchmarks.*nothing", rococo_jax.evaluate, f"{data / 'model.py'}:Random", data=data, benchmarks="nothing")


def test_the_python_function_accepts_the_options_of_the_command(data):
    source = f"{data / 'model.py'}:Random"
    results = rococo_jax.evaluate(
        source, data / "images", data / "annotations", mixed_galleries=(), images_at_once=2, limit=3,
        model_arguments={"seed": 5},
    )  # fmt: skip
    assert results["model"] == "random-5" and results["sizes"]["text_to_image"]["clean"]["gallery"] == 3
