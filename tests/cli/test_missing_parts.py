"""Test that every command that takes a model names a setting that the weights do not contain."""

import pytest

from tests.support.openai_files import openai_file
from tests.support.paths import CHECKOUT
from tests.support.world import write_world

PAIRS = "--images {images} --captions {captions}"
# Each command that takes the name of a model, with all else that it needs.
TAKE_A_MODEL = {
    "evaluate": "{model} --images {images} --annotations {annotations} --out {out}",
    "convert": "{model} {out}",
    "export": "{model} {out}",
    "inspect": "{model}",
    "join": f"{{model}} {{model}} {{out}} {PAIRS}",
    "interpolate": "{model} {model} --weight 0.5 --out {out}",
    "embed": f"{{model}} {PAIRS} --out {{out}}.npz",
    "train": "--config {config} --workdir {out} --config.init.model={model} --config.data.images={images} "
    "--config.data.captions={captions}",
    "alter-captions": "{model} --captions {captions} --variant danger --out {out}.json",
    "make-benchmark": f"--model {{model}} {PAIRS} --out {{out}}",
    "influence": "{model} --captions {captions} --out {out}.jsonl",
    "attack": f"{{model}} {PAIRS} --out {{out}}",
    "attention": "{model} --images {images} --out {out}.html",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    captions, altered = [["a dog on the grass"] * 5] * 3, {"danger": lambda text: "a car on the grass"}
    folder = write_world(tmp_path_factory.mktemp("world"), captions, altered=altered)
    openai_file("vit_quick_gelu", folder / "epoch_9.pt", "checkpoint", numbers=False)
    files = {"captions": "captions.json", "model": "epoch_9.pt"}
    files |= {"images": "images", "annotations": "annotations", "config": CHECKOUT / "configs/coco_finetune.py"}
    return {name: folder / file for name, file in files.items()}


@pytest.mark.parametrize("command", TAKE_A_MODEL)
def test_every_command_names_the_option_for_a_missing_part_of_a_checkpoint(command, places, tmp_path, refusal):
    words = [word.format(**places, out=tmp_path / "out") for word in TAKE_A_MODEL[command].split()]
    (line,) = (line for line in refusal(command, *words).splitlines() if "epoch_9.pt: activation: found" in line)
    for part in (
        "wanted the argument activation, quick_gelu or gelu",
        "convert the checkpoint with `rococo convert` first",
    ):
        assert part in line


@pytest.mark.parametrize(
    ("name", "said"),
    [("model.safetensors", "weights without an architecture; wanted its folder"), ("epoch_32.bin2", "a file .bin2")],
)
def test_the_error_for_an_incomplete_weights_file_contains_a_hint(tmp_path, refusal, name, said):
    (tmp_path / name).write_bytes(b"x")
    assert said in refusal("inspect", tmp_path / name)
