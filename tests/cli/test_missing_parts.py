"""What a checkpoint does not say is asked for by its name, by every command that takes a model."""

import json

import numpy as np
import pytest
from PIL import Image

from rococo_jax.cli.main import COMMANDS
from tests.checkpoints.test_openai import openai_file
from tests.support.paths import CHECKOUT

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
    "attention": "{model} --images {images} --out {out}.html",
    "bench": "{model}",
}
# Those that take none, or hand it to one of the others in a process of its own.
OTHERS = "demo benchmarks fetch score export-inputs report select factors correlate sweep pack mix-images".split()
OTHERS += "corrupt-images verify baselines".split()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    for name in ("images", "annotations"):
        (folder / name).mkdir()
    items = [{"image": f"{number}.png", "caption": ["a dog on the grass"] * 5} for number in range(3)]
    for item in items:
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / "images" / item["image"])
    (folder / "captions.json").write_text(json.dumps(items))
    (folder / "annotations" / "danger.json").write_text(
        json.dumps([{**item, "caption": [*item["caption"], *["a car on the grass"] * 5]} for item in items])
    )
    model = openai_file("vit_quick_gelu", folder / "epoch_9.pt", "checkpoint", numbers=False)
    names = {name: folder / name for name in ("images", "annotations")}
    return {
        **names,
        "captions": folder / "captions.json",
        "model": model,
        "config": CHECKOUT / "configs/scenes_tiny.py",
    }


def test_every_command_is_in_one_list():
    assert sorted([*TAKE_A_MODEL, *OTHERS]) == sorted(COMMANDS)


@pytest.mark.parametrize("command", TAKE_A_MODEL)
def test_every_command_asks_for_what_a_checkpoint_does_not_say(command, places, tmp_path, refusal):
    words = [word.format(**places, out=tmp_path / "out") for word in TAKE_A_MODEL[command].split()]
    (line,) = (line for line in refusal(command, *words).splitlines() if "epoch_9.pt: activation: found" in line)
    for part in ("wanted the argument activation, quick_gelu or gelu", "reads the folder that `rococo convert` writes"):
        assert part in line
