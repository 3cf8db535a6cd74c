"""Evaluation during training asks any benchmark, and gives the figures of `rococo evaluate` on the same weights."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.evaluation.callback import make_evaluation
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config
from tests.support.devices import all_devices_are
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.tiny_runs import write_config_file
from tests.support.world import noise, write_pictures, write_world

IMAGES = 12
BENCHMARKS = "rococo,cifar10,choices"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A retrieval benchmark, classes and choices in the documented layout, images of no class, and a model."""
    captions = [random_captions(5, seed=number, longest=6) for number in range(IMAGES)]
    folder, start = tmp_path_factory.mktemp("data"), tiny_encoder(name="start")
    write_world(folder, captions, picture=noise(36, 40), altered={"danger": "{} q".format}, start=start)
    names = [f"{number:02}.png" for number in range(IMAGES)]
    classes = [f"{('cat', 'dog', 'boat')[number % 3]}/{name}" for number, name in enumerate(names)]
    write_pictures(folder / "cifar10" / "images", classes, noise(30, 44))
    write_pictures(folder / "noise", names, noise(20, 30))
    for place in ("coco/images", "choices/images", "rococo/annotations"):
        (folder / place).parent.mkdir()
        (folder / place).symlink_to(folder / Path(place).name)
    with (folder / "choices" / "items.jsonl").open("w") as file:
        for number, (name, (text, *_)) in enumerate(zip(names, captions, strict=True)):
            item = {"id": name, "images": [{"file": name}], "texts": [text, f"{text} q"], "match": [[0, 0]]}
            item["part"] = ("few", "many")[number > 2]
            file.write(json.dumps(item) + "\n")
    settings = {
        "steps": 2,
        "batch_size": 8,
        "fsdp": 2,
        "train__vision": "none",
        "train__text": "none",
        "checkpoint__keep": 9,
        "log__every": 50,
    }
    settings |= {"eval__data": str(folder), "eval__benchmarks": BENCHMARKS, "eval__every": 1, "eval__templates": "1"}
    settings |= {"eval__out_images": f"noise={folder}/noise", "eval__mixed_galleries": "mix_0.9", "eval__seeds": "1,10"}
    write_config_file(folder, **settings)
    return folder


@pytest.fixture(scope="module")
def small_shards():
    """Shard the parameters of a tiny model, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 256)
        yield


@pytest.fixture(scope="module", autouse=True)
def two_devices():
    """All eight devices, in place of the two of other files: tests choose how many they take."""


def figures_of(results: dict) -> dict[str, float]:
    leaves = flatten_dict(results["tasks"], sep="/")
    return {path: value for path, value in leaves.items() if value is not None and "/unseen/" not in path}


@pytest.mark.slow
def test_numbers_of_a_run_match_evaluate_on_its_model(data, small_shards, tmp_path):
    run = tmp_path / "run"
    with all_devices_are(2):
        assert main(["train", "--config", str(data / "config.py"), "--workdir", str(run), "--quiet"]) == 0
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    asked = f"--data {data} --benchmarks {BENCHMARKS} --out-images noise={data}/noise --templates 1 --seeds 1,10"
    asked += f" --mixed-galleries mix_0.9 --no-cache --no-report --quiet --out {tmp_path}/out"
    with all_devices_are(2):
        assert main(["evaluate", str(run / "model"), *asked.split()]) == 0
    # The model tells its training images, whose absence makes further variants; the run does not ask.
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = {key: value for key, value in lines[1].items() if key not in ("step", "score")}
    assert found == figures_of(results)
    assert "text_to_image/mix_0.9/r1_std" in found and "image_to_text/danger/fr1" in found
    assert lines[0] != {**lines[1], "step": 1}  # two steps, two models


@pytest.mark.slow
def test_numbers_are_the_same_on_any_number_of_devices_and_with_sharded_parameters(data, small_shards):
    keys = default_config().eval
    keys.data, keys.benchmarks, keys.templates = str(data), BENCHMARKS, "1"
    evaluate = make_evaluation(keys, keep=False)
    meshes = [make_mesh(jax.devices()[:count], fsdp=fsdp) for count, fsdp in ((1, 1), (8, 4))]
    alone, sharded = (evaluate(load_model(data / "start", mesh=mesh)) for mesh in meshes)
    assert alone == sharded
    parts = [alone[f"choices/{part}/ota"] for part in ("few", "many")]
    unaltered = [alone[name] for name in ("image_to_text/clean/r1", "text_to_image/clean/r1", "cifar10/clean/top1")]
    assert parts[0] != parts[1] and alone["score"] == np.mean([*unaltered, np.mean(parts)])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["eval.benchmarks=sugarcrap"], "sugarcrepe"),
        (["eval.benchmarks=winoground"], "winoground"),
        (["eval.data=/nowhere"], "/nowhere: data: found nothing there"),
        (["eval.seeds=one"], "config.eval.seeds: numbers: found one"),
        (["eval.tasks=image_to_txt"], "image_to_text"),
        (["eval.images=somewhere"], "images and data"),
        (["eval.out_images=noise"], "config.eval.out_images: entry: found noise"),
        (["eval.data="], "config.eval.every: found 1; wanted 0 without config.eval.data"),
    ],
)
def test_a_bad_key_is_reported_in_one_line_before_training(data, tmp_path, refusal, overrides, said):
    command = ["train", "--config", str(data / "config.py"), "--workdir", str(tmp_path / "run")]
    told = refusal(*command, *(f"--config.{each}" for each in overrides)).splitlines()
    assert said in told[-1] and not (tmp_path / "run").exists()
