"""The log of a run: one JSON line a logged step, and the same figures to TensorBoard and, if asked, Weights & Biases.

METRICS.jsonl      step, loss and its parts, learning_rate, gradient_norm, logit_scale, images_per_second, ...
EVALUATIONS.jsonl  step and the figures of the evaluation

A run that resumes from a checkpoint drops the lines of later steps, which are done again.

Metrics of a step are fetched while the next one runs, so the device never waits for the host; nothing is evaluated or
saved before they are found to be finite.
"""

import contextlib
import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import atomic_write
from rococo_jax.training.hooks import Hook, StepInfo
from rococo_jax.training.state import TrainingCheckpoints
from rococo_jax.training.throughput import Meter

METRICS, EVALUATIONS, TENSORBOARD, WANDB = "metrics.jsonl", "evaluations.jsonl", "tensorboard", "wandb-run"


class Diverged(RuntimeError):
    """The loss or its gradient is not finite."""


class Log(Hook):
    """Shows progress, and logs each step once it is done; stops the run where its loss is not finite.

    Args:
        file: the run's log.
        every: steps between two lines.
        steps: of the whole run.
        meter: counts the steps for their figures.
        checkpoints: one of them is good where the run stops.

    Attributes:
        loss: that of the last settled step, in words, with the share of the chip's peak where that is known.
    """

    def __init__(self, file: "RunLog", every: int, steps: range, meter: Meter, checkpoints: TrainingCheckpoints):
        self.file, self.every, self.steps, self.meter = file, every, steps, meter
        self.checkpoints, self.pending = checkpoints, None
        self.loss, self._share = "", ""
        self._shown = contextlib.ExitStack()
        self._advance = self._shown.enter_context(progress("training", steps.stop, "steps"))
        self._advance(steps.start)

    def after(self, info: StepInfo) -> None:
        self.meter.count(info.waited)
        self.settle()
        self.pending = info
        self._advance(1, self.loss)

    def settle(self) -> None:
        """Fetches the metrics of the step that was begun last, once.

        Raises Diverged: not finite.
        """
        if self.pending is None:
            return
        info, self.pending = self.pending, None
        values = {name: float(value) for name, value in jax.device_get(dict(info.metrics)).items()}
        self.loss = f"loss {values['loss']:.4f}{self._share}"
        finite = math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])
        if not finite:
            self.checkpoints.wait()
            found = f"loss {values['loss']}, gradient norm {values['gradient_norm']}"
            raise Diverged(f"step {info.done}: {found}; {self.checkpoints.last_good()}")
        if info.done % self.every == 0 or info.done == 1 or info.last:
            figures = self.meter.read()
            self._share = f", MFU {figures['mfu']:.1%}" if "mfu" in figures else ""
            self.file.write(METRICS, info.done, {**values, **figures, **info.counts})

    def close(self) -> None:
        self._shown.close()


class RunLog:
    """Appends to the log of a working folder from a step on. `folder=None` writes nothing (other processes).

    Args:
        wandb: arguments of `wandb.init` (project, name, config); None for no Weights & Biases. A run that resumes goes
            on with the same one, whose identifier is kept in the folder.

    """

    def __init__(
        self, folder: Path | None, first_step: int, *, tensorboard: bool, wandb: Mapping[str, Any] | None = None
    ):
        self.folder, self.files, self.board, self.wandb = folder, {}, None, None
        if folder is None:
            return
        for name in (METRICS, EVALUATIONS):
            with atomic_write(folder / name) as path:  # a kill here leaves the log as it was
                path.write_text("".join(_lines_up_to(folder / name, first_step)))
            self.files[name] = (folder / name).open("a", buffering=1)
        if tensorboard:
            from tensorboardX import SummaryWriter

            self.board = SummaryWriter(str(folder / TENSORBOARD), purge_step=first_step + 1)
        if wandb is not None:
            self.wandb = _wandb_run(folder, wandb)

    def write(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """A line of `METRICS` or `EVALUATIONS`."""
        if self.folder is None:
            return
        self.files[name].write(
            json.dumps({"step": step, **{key: _plain(value) for key, value in values.items()}}) + "\n"
        )
        group = name.removesuffix(".jsonl")
        finite = {
            f"{group}/{key}": value
            for key, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        if self.board is not None:
            for key, value in finite.items():
                self.board.add_scalar(key, value, step)
        if self.wandb is not None:
            self.wandb.log(finite, step=step)

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish()


def check_wandb(project: str) -> None:
    """Raises InputError where a project is named and wandb is not installed."""
    if project and importlib.util.find_spec("wandb") is None:
        wanted = "'' or wandb installed: pip install 'rococo-jax[wandb]'"
        raise InputError("config", "config.log.wandb", repr(project), wanted)


def _wandb_run(folder: Path, arguments: Mapping[str, Any]) -> Any:
    import wandb

    kept = folder / WANDB
    run = wandb.init(**arguments, dir=str(folder), id=kept.read_text() if kept.exists() else None, resume="allow")
    with atomic_write(kept) as path:
        path.write_text(run.id)
    return run


def _lines_up_to(path: Path, step: int) -> list[str]:
    if not path.exists():
        return []
    kept = []
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):  # cut short when the run was killed, or no line of it
            continue
    return kept


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
