"""`launch/slurm.py`, called in this process: what it prints, and how it ends."""

import contextlib
import importlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import CHECKOUT

LAUNCH = CHECKOUT / "launch"
CONFIG = "configs/scenes_tiny.py"
# Blanks, both quotes, a dollar, a variable of Kubernetes, a glob, and letters beyond ASCII.
AWKWARD = ['--config.data.images=it\'s "a" $(HOME) $HOME * \\ b', "--config.data.captions=ä#: {x}", "--config.steps=3"]
TRAIN = ["train", "--config", CONFIG, *AWKWARD]

sys.path.append(str(LAUNCH))
_slurm = importlib.import_module("slurm")
read_run_command = _slurm.read_run_command


def launch(*own: str, train: list[str] = TRAIN) -> subprocess.CompletedProcess:
    """Run the launcher with its own options and the words after `--`."""
    words = [*own, *(["--", *train] if train else [])]
    with (
        contextlib.chdir(CHECKOUT),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = _slurm.main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def dry(*own: str, train: list[str] = TRAIN) -> str:
    """Return the batch script that the launcher would submit."""
    result = launch(*own, "--dry-run", train=train)
    assert result.returncode == 0, result.stderr
    return result.stdout


def config_hash(*overrides: str) -> str:
    return read_run_command(["train", "--config", str(CHECKOUT / CONFIG), *overrides]).hash


HASH = config_hash(*AWKWARD)
NAME = f"rococo-scenes-tiny-{HASH[:12]}"


def check_by(program: str, path: Path) -> None:
    """Run a checker that the extra `dev` installs beside this Python."""
    checker = shutil.which(program, path=Path(sys.executable).parent) or shutil.which(program)
    result = subprocess.run([checker, path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
