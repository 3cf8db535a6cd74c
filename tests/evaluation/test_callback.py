"""Evaluation during training asks any benchmark, and gives the figures of `rococo evaluate` on the same weights."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.evaluation.callback import make_evaluation
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config
from tests.support.tiny import random_captions, tiny_encoder

IMAGES = 12
BENCHMARKS = "rococo,cifar10,choices"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A retrieval benchmark, classes and choices in the documented layout, images of no class, and a model."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def draw(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (36, 40, 3), np.uint8)).save(path)

    clean, altered, choices = [], [], []
    for number in range(IMAGES):
        name = f"{number:02}.png"
        draw(folder / "coco" / "images" / name)
        draw(folder / "choices" / "images" / name)
        draw(folder / "cifar10" / "images" / ("cat", "dog", "boat")[number % 3] / name)
        draw(folder / "noise" / name)
        texts = random_captions(10, seed=number, longest=6)
        clean.append({"image": name, "caption": texts[:5]})
        altered.append({"image": name, "caption": texts})
        picture, pair = [{"file": name}], {"texts": [texts[0], texts[5]], "match": [[0, 0]]}
        choices.append({"id": str(number), "images": picture, **pair})
    (folder / "rococo" / "annotations").mkdir(parents=True)
    for name, items in (("coco_karpathy_test", clean), ("danger", altered)):
        (folder / "rococo" / "annotations" / f"{name}.json").write_text(json.dumps(items))
    (folder / "choices" / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in choices))
    (folder / "captions.json").write_text(json.dumps(clean))
    save_model(folder / "start", tiny_encoder(name="start"))
    (folder / "config.py").write_text(
        "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n"
        "    config = default_config()\n"
        "    config.steps, config.batch_size, config.log.tensorboard, config.fsdp = 2, 8, False, 4\n"
        f"    config.init.model = {str(folder / 'start')!r}\n"
        f"    config.data.images, config.data.captions = {str(folder / 'coco/images')!r}, "
        f"{str(folder / 'captions.json')!r}\n"
        f"    config.eval.data, config.eval.benchmarks, config.eval.every = {str(folder)!r}, {BENCHMARKS!r}, 1\n"
        f"    config.eval.out_images, config.eval.templates = {'noise=' + str(folder / 'noise')!r}, '1'\n"
        "    config.eval.mixed_galleries, config.eval.seeds, config.checkpoint.keep = 'mix_0.9', '1,10', 9\n"
        "    return config\n"
    )
    return folder


@pytest.fixture(scope="module")
def small_shards():
    """Parameters of a tiny model are sharded, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 256)
        yield


def figures_of(results: dict) -> dict[str, float]:
    leaves = flatten_dict(results["tasks"], sep="/")
    return {path: value for path, value in leaves.items() if value is not None and "/unseen/" not in path}


def test_figures_of_a_run_are_those_of_evaluate_on_its_checkpoint_and_model(data, small_shards, tmp_path):
    run = tmp_path / "run"
    assert main(["train", "--config", str(data / "config.py"), "--workdir", str(run), "--quiet"]) == 0
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    asked = ["--data", str(data), "--benchmarks", BENCHMARKS, "--out-images", f"noise={data / 'noise'}"]
    asked += ["--templates", "1", "--mixed-galleries", "mix_0.9", "--seeds", "1,10", "--no-cache", "--no-report"]
    models = (f"first={run / 'checkpoints' / '1'}", f"last={run / 'model'}")
    assert main(["evaluate", *models, *asked, "--out", str(tmp_path), "--quiet"]) == 0
    for line, name in zip(lines, ("first", "last"), strict=True):
        # The model tells its training images, whose absence makes further variants; the run does not ask.
        results = json.loads((tmp_path / name / "results.json").read_text())
        found = {key: value for key, value in line.items() if key not in ("step", "score")}
        assert found == figures_of(results)
    assert "text_to_image/mix_0.9/r1_std" in found and "image_to_text/danger/fr1" in found
    assert lines[0] != {**lines[1], "step": 1}  # two steps, two models


def test_figures_are_the_same_on_any_number_of_devices_and_with_sharded_parameters(data, small_shards):
    keys = default_config().eval
    keys.data, keys.benchmarks, keys.templates = str(data), BENCHMARKS, "1"
    evaluate = make_evaluation(keys, keep=False)
    meshes = [(1, 1), (2, 1), (8, 4)]
    figures = [
        evaluate(load_model(data / "start", mesh=make_mesh(jax.devices()[:count], fsdp=fsdp))) for count, fsdp in meshes
    ]
    for mesh, found in zip(meshes, figures, strict=True):
        assert found == figures[0], mesh
    unaltered = ("image_to_text/clean/r1", "text_to_image/clean/r1", "cifar10/clean/top1", "choices/all/ota")
    assert figures[0]["score"] == np.mean([figures[0][name] for name in unaltered])


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
        (["eval.data="], "config.eval.every: found 1; wanted 0 without eval.data"),
    ],
)
def test_a_bad_key_is_one_line_before_training(data, tmp_path, refusal, overrides, said):
    command = ["train", "--config", str(data / "config.py"), "--workdir", str(tmp_path / "run")]
    told = refusal(*command, *(f"--config.{each}" for each in overrides)).splitlines()
    assert said in told[-1] and not (tmp_path / "run").exists()
