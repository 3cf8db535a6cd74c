"""Config files, config values, and working folders of training that cannot be used."""

import re
import shutil

import pytest
from PIL import Image

from rococo_jax.training.config import check_config, default_config
from tests.support.devices import all_devices_are
from tests.support.faults import Fault, World, each_of, edited, undamaged, with_value, written
from tests.support.refusals import refused
from tests.support.tiny_runs import metrics_of


def _config(name: str, text: str | bytes, says: str = "config.py: ") -> Fault:
    return Fault(name, written("config.py", text), says, "train")


_START = "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n    config = default_config()\n"
FILES = [
    _config("config with a syntax error", "def get_config(:\n", r"config.py: config: found SyntaxError.*\(line 1\)"),
    _config("get_config raises", "def get_config():\n    return 1 / 0\n", r"ZeroDivisionError.*\(line 2\)"),
    _config("config imports what is not there", "import nonsense_xyz\n", "ModuleNotFoundError.*nonsense_xyz"),
    _config("config calls sys.exit", "import sys\nsys.exit(3)\n", "SystemExit"),
    _config("a list as batch_size", f"{_START}    config.batch_size = [1]\n    return config\n", "batch_size"),
    _config("config without a key", f"{_START}    del config['steps']\n    return config\n", "found .*locked"),
    _config("binary config", b"\0\1\2\xff" * 20),
    Fault("workdir is a file", undamaged, "captions.json: file system: found Not a directory",
          lambda world: world.command("train", out="captions.json")),
    Fault("fsdp=3", undamaged, "fsdp: found 3 on 2 devices; wanted a divisor",
          lambda world: world.command("train", "--config.fsdp=3")),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [
    ("seed", -1), ("seed", 99999999999999999999999), ("optimizer.b1", 2.0), ("optimizer.b2", 1.0),
    ("optimizer.b2", -1.0), ("optimizer.eps", -1.0), ("optimizer.eps", 0.0), ("optimizer.weight_decay", -5.0),
    ("optimizer.grad_clip_norm", -1.0), ("optimizer.final_lr_fraction", -1.0), ("optimizer.final_lr_fraction", 5.0),
    ("optimizer.tower_lr_scale", -1.0), ("data.workers", -1), ("data.prefetch", -1), ("eval.every", 1),
    ("init.residual_head_width", -1), ("optimizer.learning_rate", float("nan")),
])  # fmt: skip
def test_config_values_out_of_range_are_refused(key, value):
    """Values out of range; `optimizer.grad_clip_norm=0` is none: it says that nothing is clipped."""
    config = default_config()
    check_config(config)
    config.update_from_flattened_dict({key: value})
    refused(f"config.{key}: found .*; wanted ", check_config, config, "a.py")


def _other_images(world):
    for number, path in enumerate(sorted((world / "images").iterdir())):
        Image.new("RGB", (40, 40), (number, 99, 200)).save(path)


def _other_tokenizer(value):
    words = value["model"]["vocab"]
    words["dog"], words["cat"] = words["cat"], words["dog"]


def _model_alone(world):
    shutil.copytree(world / "model", world / "workdir/model")
    shutil.rmtree(world / "workdir/checkpoints")
    (world / "workdir/config.json").unlink()


def _log_as_folder(world):
    (world / "workdir/metrics.jsonl").unlink()
    (world / "workdir/metrics.jsonl").mkdir()


def _log_begins_with_garbage(world):
    path = world / "workdir/metrics.jsonl"
    path.write_bytes(b"\xff\xfe\0\n[1]\n7\n" + path.read_bytes())


def _whole_log(world):
    assert [line["step"] for line in metrics_of(world / "workdir")] == [1, 2]


def _at_step_0(folder):
    for path in (each for each in (folder / "1/input").iterdir() if each.is_file()):
        path.write_text(re.sub(r'"next_step": ?1', '"next_step": 0', path.read_text()))


def _checkpoint(name: str, damage, says: str) -> Fault:
    return Fault(f"checkpoint: {name}", lambda world: damage(world / "workdir/checkpoints"), says, "train")


RESUMED = [
    Fault("ALL images replaced by others of the same names", _other_images, "1: images: f", "train"),
    Fault("tokenizer.json of init.model changed", edited("model/tokenizer.json", _other_tokenizer),
          "1: tokenizer: found", "train"),
    Fault("preprocessing of init.model changed (mean)", with_value("model/model.json", "preprocessing.mean", [0.1] * 3),
          "1: preprocessing: found", "train"),
    Fault("config.json a list", written("workdir/config.json", "[]"), "config.json", "train"),
    Fault("config.json gone, other learning rate: silently another run?",
          lambda world: (world / "workdir/config.json").unlink(),
          "config.json: config: found nothing there beside checkpoints", "train"),
    Fault("a model without config.json: done?", _model_alone, "config: found nothing there beside model", "train"),
    Fault("metrics.jsonl begins with garbage and JSON that is no object", _log_begins_with_garbage, "", "train", 0,
          _whole_log),
    Fault("metrics.jsonl is a folder", _log_as_folder, "metrics.jsonl: file system: found Is a directory", "train"),
    _checkpoint("input gone", lambda folder: shutil.rmtree(folder / "1/input"), "checkpoints/1: checkpoint"),
    _checkpoint("run gone", lambda folder: shutil.rmtree(folder / "1/run"), "checkpoints/1: checkpoint"),
    _checkpoint("empty folder 2", lambda folder: (folder / "2").mkdir(), "checkpoints/2: checkpoint"),
    _checkpoint("a folder named 999 beside", lambda folder: (folder / "999").mkdir(), "checkpoints/999: checkpoint"),
    _checkpoint("folder 3 copied from 2", lambda folder: shutil.copytree(folder / "1", folder / "3"), "step: found"),
    _checkpoint("input next_step edited to 0", _at_step_0, "input: found step 0"),
]  # fmt: skip


@each_of(FILES)
def test_bad_files_of_a_training_run_are_reported_in_one_line(fault, world, capsys):
    fault.check(world, capsys)


@pytest.fixture(scope="module")
def stopped(pristine, tmp_path_factory):
    """A run of two steps of which one is done."""
    # On one device, whose step takes a fraction of the time to compile.
    with all_devices_are(1):
        world = World(shutil.copytree(pristine, tmp_path_factory.mktemp("stopped") / "world", symlinks=True))
        world.run("train")
        shutil.rmtree(world / "workdir/model")
        shutil.rmtree(world / "workdir/checkpoints/2")
        yield world / "workdir"


@pytest.mark.slow
@each_of(RESUMED)
def test_damaged_files_of_a_stopped_run_are_reported_in_one_line(fault, world, stopped, capsys):
    shutil.copytree(stopped, world / "workdir")
    fault.check(world, capsys)
