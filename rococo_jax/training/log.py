"""The log of a run: one JSON line a logged step, and the same figures to TensorBoard and, if asked, Weights & Biases.

METRICS.jsonl      step, loss and its parts, learning_rate, gradient_norm, logit_scale, images_per_second, ...;
                   counts of images and texts that were lost since step 0, over all processes
EVALUATIONS.jsonl  step and the results of the evaluation

A run that resumes from a checkpoint drops the lines of later steps, which are done again. Of the rates,

    mfu = model FLOPs / (seconds a step * devices * peak)       arXiv 2204.02311, appendix B
"""

import contextlib
import importlib.util
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from rococo_jax.encoders.loading import EVALUATIONS
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import atomic_write
from rococo_jax.training.program import peak_flops

METRICS, TENSORBOARD, WANDB = "metrics.jsonl", "tensorboard", "wandb-run"


class RunLog:
    """Appends to the log of a working folder from a step on. `folder=None` writes nothing (other processes).

    Args:
        wandb: arguments of `wandb.init` (project, name, config), which reads TensorBoard's curves; None for none. A run
            that resumes goes on with the same one, whose identifier is kept in the folder.
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
        if wandb is not None:
            self.wandb = _wandb_run(folder, wandb)
        if tensorboard or wandb is not None:
            from tensorboardX import SummaryWriter

            self.board = SummaryWriter(str(folder / TENSORBOARD), purge_step=first_step + 1)

    def write(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """A line of `METRICS` or `EVALUATIONS`."""
        if self.folder is None:
            return
        line = {"step": step, **{key: _plain(value) for key, value in values.items()}}
        self.files[name].write(json.dumps(line) + "\n")
        if self.board is not None:
            for key, value in values.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    self.board.add_scalar(f"{name.removesuffix('.jsonl')}/{key}", value, step)

    def has(self, name: str, step: int) -> bool:
        """Whether `METRICS` or `EVALUATIONS` has a line of a step."""
        return any(json.loads(line)["step"] == step for line in _lines_up_to(self.folder / name, step))

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish()


def check_wandb(project: str) -> None:
    """Raises InputError where a project is named, and wandb or the tensorboard that it reads by is not installed."""
    if project and not all(map(importlib.util.find_spec, ("wandb", "tensorboard"))):
        wanted = "'' or wandb installed: pip install 'rococo-jax[wandb]'"
        raise InputError("config", "config.log.wandb", repr(project), wanted)


def _wandb_run(folder: Path, arguments: Mapping[str, Any]) -> Any:
    import wandb

    kept = folder / WANDB
    resumed = {"id": kept.read_text() if kept.exists() else None, "resume": "allow"}
    run = wandb.init(**arguments, **resumed, dir=str(folder), sync_tensorboard=True)
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


class Meter:
    """Counts steps between two readings.

    Args:
        images: images of a global batch.
        devices: of the run's mesh.
        flops: operations of a step on one device; 0 where unknown.

    Attributes:
        memory: bytes that the step's program takes on one device, None where unknown.
    """

    def __init__(self, images: int, devices: int = 1, flops: float = 0.0):
        self.images, self.devices, self.flops = images, devices, flops
        self.memory: int | None = None
        device = jax.local_devices()[0]
        self.peak = peak_flops(device)
        if self.peak is None and device.platform != "cpu" and jax.process_index() == 0:
            say(f"no published peak is known of {device.device_kind!r} (PEAK_TFLOPS): no mfu")
        self.begun, self.lost = time.perf_counter(), Counter()
        self.restart()

    def restart(self) -> None:
        """Forgets the steps so far."""
        self.start, self.steps, self.waited = time.perf_counter(), 0, 0.0

    def count(self, waited: float = 0.0, idle: float | None = None) -> None:
        """Count one step, before which the host waited so many seconds for its batch.

        Args:
            idle: seconds of these in which the device had finished the step before, all by default; they alone are
                lost.
        """
        self.steps += 1
        self.waited += waited
        self.lost["waiting for data"] += waited if idle is None else idle

    @contextlib.contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        """Leaves out the time of a block, which is not spent on steps."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.start += seconds
        self.lost[reason] += seconds

    def goodput(self) -> tuple[float, str]:
        """The share of the time since the start that was spent in steps; and it in words, with what took the rest."""
        whole = max(time.perf_counter() - self.begun, 1e-9)
        share = max(0.0, 1 - sum(self.lost.values()) / whole)
        rest = [f"{reason} {seconds / whole:.0%}" for reason, seconds in self.lost.most_common() if seconds]
        return share, ", ".join([f"{share:.0%} of {whole:.0f} s in steps", *rest])

    def read(self) -> dict[str, float]:
        """Figures since the last reading."""
        now = time.perf_counter()
        steps = max(self.steps, 1)
        seconds, waited = max(now - self.start, 1e-9) / steps, self.waited / steps
        self.restart()
        rate = self.images / seconds
        figures = {
            "images_per_second": rate,
            "images_per_second_per_device": rate / self.devices,
            "seconds_per_step": seconds,
            "seconds_waiting_for_data": waited,
            "goodput": self.goodput()[0],
        }
        if self.flops and self.peak:
            figures["mfu"] = self.flops / seconds / self.peak
        if self.memory is not None:
            figures["memory_bytes_per_device"] = self.memory
        return figures | memory_in_use(jax.local_devices()[0].memory_stats() or {})


def memory_in_use(stats: Mapping[str, int]) -> dict[str, int]:
    """Bytes in use now and at most so far, of what a device tells of its memory (CPUs: nothing)."""
    names = {"memory_in_use_bytes": "bytes_in_use", "memory_peak_bytes": "peak_bytes_in_use"}
    return {name: stats[key] for name, key in names.items() if key in stats}
