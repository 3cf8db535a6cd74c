"""Config files, config values, and working folders of training that cannot be used."""

import json
import re
import shutil

import jax
import pytest
from PIL import Image

from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh
from rococo_jax.training import run
from rococo_jax.training.config import check_config, default_config
from tests.support.faults import Table

FILES, RESUMED = Table(), Table()


def _file(name: str, text, **expected):
    @FILES.row(name, **{"says": "config.py: ", **expected})
    def _(world):
        content = text if isinstance(text, bytes) else text.encode()
        (world / "config.py").write_bytes(content)
        return world.train()


_START = "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n    config = default_config()\n"
_file("config with a syntax error", "def get_config(:\n", says=r"config.py: config: found SyntaxError.*\(line 1\)")
_file("get_config raises", "def get_config():\n    return 1 / 0\n", says=r"ZeroDivisionError.*\(line 2\)")
_file("config imports what is not there", "import nonsense_xyz\n", says="ModuleNotFoundError.*nonsense_xyz")
_file("config calls sys.exit", "import sys\nsys.exit(3)\n", says="SystemExit")
_file(
    "config with a list as batch_size", f"{_START}    config.batch_size = [1]\n    return config\n", says="batch_size"
)
_file("config without a key", f"{_START}    del config['steps']\n    return config\n", says="found no 'steps'")
_file("binary config", b"\0\1\2\xff" * 20)


@FILES.row("workdir is a file", says="captions.json: file system: found Not a directory")
def _(world):
    return world.train(workdir="captions.json")


@FILES.row("fsdp=3", says="fsdp: found 3 on 8 devices; wanted a divisor")
def _(world):
    return world.train("fsdp=3")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1), ("seed", 99999999999999999999999), ("optimizer.b1", 2.0), ("optimizer.b2", 1.0),
        ("optimizer.b2", -1.0), ("optimizer.eps", -1.0), ("optimizer.eps", 0.0), ("optimizer.weight_decay", -5.0),
        ("optimizer.grad_clip_norm", -1.0), ("optimizer.final_lr_fraction", -1.0), ("optimizer.final_lr_fraction", 5.0),
        ("optimizer.tower_lr_scale", -1.0), ("data.workers", -1), ("data.prefetch", -1), ("eval.every", 1),
        ("init.residual_head_width", -1), ("optimizer.learning_rate", float("nan")),
    ],
)  # fmt: skip
def test_config_values(key, value):
    """Values out of range; `optimizer.grad_clip_norm=0` is none: it says that nothing is clipped."""
    config = default_config()
    check_config(config)
    parts = key.split(".")
    section = config[parts[0]] if len(parts) == 2 else config
    section[parts[-1]] = value
    with pytest.raises(InputError, match=f"config.{key}: found .*; wanted "):
        check_config(config, "a.py")


def _stopped(world) -> None:
    """A run of two steps of which one is done."""
    world.run(world.train())
    shutil.rmtree(world / "workdir/model")
    shutil.rmtree(world / "workdir/checkpoints/2")


def _resumed(name: str, change, **expected):
    @RESUMED.row(name, **expected)
    def _(world):
        _stopped(world)
        change(world)
        return world.train()


def _other_images(world):
    for number, path in enumerate(sorted((world / "images").iterdir())):
        Image.new("RGB", (40, 40), (number, 99, 200)).save(path)


def _other_tokenizer(world):
    def swap(value):
        words = value["model"]["vocab"]
        words["dog"], words["cat"] = words["cat"], words["dog"]

    world.edit("model/tokenizer.json", swap)


def _mean(world):
    world.edit("model/model.json", lambda value: value["preprocessing"].update(mean=[0.1, 0.2, 0.3]))


_resumed("ALL images replaced by others of the same names between stop and resume", _other_images, says="1: images: f")
_resumed("tokenizer.json of init.model changed between stop and resume", _other_tokenizer, says="1: tokenizer: found")
_resumed("preprocessing of init.model changed (mean) between stop and resume", _mean, says="1: preprocessing: found")
_resumed("config.json a list", lambda world: (world / "workdir/config.json").write_text("[]"), says="config.json")
_resumed(
    "config.json gone, other learning rate: silently another run?",
    lambda world: (world / "workdir/config.json").unlink(),
    says="config.json: config: found nothing there beside checkpoints",
)


def _model_alone(world):
    shutil.copytree(world / "model", world / "workdir/model")
    shutil.rmtree(world / "workdir/checkpoints")
    (world / "workdir/config.json").unlink()


_resumed("a model without config.json: done?", _model_alone, says="config: found nothing there beside model")


def _steps(world):
    assert [json.loads(line)["step"] for line in (world / "workdir/metrics.jsonl").read_text().splitlines()] == [1, 2]


def _garbage(content: bytes):
    def change(world):
        path = world / "workdir/metrics.jsonl"
        path.write_bytes(content + path.read_bytes())

    return change


_resumed("metrics.jsonl with binary garbage", _garbage(b"\xff\xfe\0\n"), code=0, after=_steps, thorough=True)
_resumed("metrics.jsonl with JSON that is no object", _garbage(b"[1]\n7\n"), code=0, after=_steps)


def _log_as_folder(world):
    (world / "workdir/metrics.jsonl").unlink()
    (world / "workdir/metrics.jsonl").mkdir()


_resumed("metrics.jsonl is a folder", _log_as_folder, says="metrics.jsonl: file system: found Is a directory")


def _checkpoint(name: str, change, **expected):
    _resumed(f"checkpoint: {name}", lambda world: change(world / "workdir/checkpoints"), **expected)


_checkpoint("input gone", lambda folder: shutil.rmtree(folder / "1/input"), says="checkpoints/1: checkpoint")
_checkpoint("run gone", lambda folder: shutil.rmtree(folder / "1/run"), says="checkpoints/1: checkpoint")
_checkpoint("empty folder 2", lambda folder: (folder / "2").mkdir(), says="checkpoints/2: checkpoint")
_checkpoint("a folder named 999 beside", lambda folder: (folder / "999").mkdir(), says="checkpoints/999: checkpoint")
_checkpoint("folder 3 copied from 2", lambda folder: shutil.copytree(folder / "1", folder / "3"), says="step: found")
_checkpoint(
    "input next_step edited to 0",
    lambda folder: [
        path.write_text(re.sub(r'"next_step": ?1', '"next_step": 0', path.read_text()))
        for path in (folder / "1/input").iterdir()
        if path.is_file()
    ],
    says="input: found step 0",
)  # fmt: skip


@FILES.each
def test_files(fault, world, capsys):
    fault.check(world, capsys)


@pytest.fixture(scope="module")
def one_device():
    """Resumes on one device, whose step takes a fraction of the time to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_mesh", lambda fsdp: make_mesh(jax.devices()[:1], fsdp=fsdp))
        yield


@pytest.fixture(scope="module")
def stopped(one_device, pristine, tmp_path_factory):
    """One stopped run, copied into the world of each row."""
    from tests.support.faults import World

    world = World(shutil.copytree(pristine, tmp_path_factory.mktemp("stopped") / "world", symlinks=True))
    _stopped(world)
    return world.root


@RESUMED.each
def test_resumed(fault, world, stopped, monkeypatch, capsys):
    copy = lambda world: shutil.copytree(stopped / "workdir", world / "workdir")  # noqa: E731
    monkeypatch.setitem(globals(), "_stopped", copy)
    fault.check(world, capsys)
