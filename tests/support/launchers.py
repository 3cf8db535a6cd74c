"""The launchers of `launch/`, called in this process: what they print, and how they end."""

import contextlib
import importlib
import io
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.paths import CHECKOUT

LAUNCH = CHECKOUT / "launch"
CONFIG = "configs/scenes_tiny.py"
# Blanks, both quotes, a dollar, a variable of Kubernetes, a glob, and letters beyond ASCII.
AWKWARD = ['--config.data.images=it\'s "a" $(HOME) $HOME * \\ b', "--config.data.captions=ä#: {x}", "--config.steps=3"]
TRAIN = ["train", "--config", CONFIG, *AWKWARD]

sys.path.append(str(LAUNCH))
_command = importlib.import_module("command")
read_run_command = _command.read_run_command


def launch(name: str, *own: str, train: list[str] = TRAIN) -> subprocess.CompletedProcess:
    """Run a launcher that starts nothing which lives on."""
    words = [*own, *(["--", *train] if train else [])]
    with (
        contextlib.chdir(CHECKOUT),
        patch.object(sys, "argv", [f"{name}.py", *words]),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as ended,
    ):
        _command.run_main(importlib.import_module(name).main)
    return subprocess.CompletedProcess(words, ended.value.code, out.getvalue(), err.getvalue())


def dry(name: str, *own: str, train: list[str] = TRAIN) -> str:
    """Return the command that a launcher would run."""
    result = launch(name, *own, "--dry-run", train=train)
    assert result.returncode == 0, result.stderr
    return result.stdout


def config_hash(*overrides: str) -> str:
    return _command.read_run_command(["train", "--config", str(CHECKOUT / CONFIG), *overrides]).hash


HASH = config_hash(*AWKWARD)
NAME = f"rococo-scenes-tiny-{HASH[:12]}"


def check_by(program: str, path: Path) -> None:
    """Run a checker that the extra `dev` installs beside this Python."""
    checker = shutil.which(program, path=Path(sys.executable).parent) or shutil.which(program)
    result = subprocess.run([checker, path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
