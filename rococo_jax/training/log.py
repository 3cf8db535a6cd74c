"""The log of a run: one JSON line per logged step, and the same numbers for TensorBoard and, optionally, wandb.

metrics.jsonl      step, loss and its terms, learning_rate, norms of the gradient, of the trained parameters and of
                   their update, logit_scale, images_per_second, ...;
                   counts of images and texts that were lost since step 0, over all processes
evaluations.jsonl  step and the results of the evaluation

A run that resumes from a checkpoint drops the lines of later steps, which it computes again. Model FLOPs utilisation:

    mfu = model FLOPs / (seconds per step * devices * peak)       arXiv 2204.02311, appendix B
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
from rococo_jax.errors import missing_library
from rococo_jax.progress import say
from rococo_jax.storage import atomic_write
from rococo_jax.training.program import peak_flops

METRICS, TENSORBOARD, WANDB = "metrics.jsonl", "tensorboard", "wandb-run"


class RunLog:
    """The log files of a run, from a step on.

    Args:
        folder: the working directory; None writes nothing (other processes).
        first_step: step from which the run resumes; lines of later steps are dropped.
        wandb: arguments of `wandb.init` (project, name, config), which reads TensorBoard's curves; None for no wandb. A
            resumed run continues the same wandb run, whose identifier is stored in the folder.
    """

    def __init__(
        self, folder: Path | None, first_step: int, *, tensorboard: bool, wandb: Mapping[str, Any] | None = None
    ):
        self.folder, self.files, self.board, self.wandb = folder, {}, None, None
        if folder is None:
            return
        for name in (METRICS, EVALUATIONS):
            with atomic_write(folder / name) as path:  # if the process is killed here, the log stays as it was
                path.write_text("".join(_lines_up_to(folder / name, first_step)))
            self.files[name] = (folder / name).open("a", buffering=1)
        if wandb is not None:
            self.wandb = _wandb_run(folder, wandb)
        if tensorboard or wandb is not None:
            from tensorboardX import SummaryWriter

            self.board = SummaryWriter(str(folder / TENSORBOARD), purge_step=first_step + 1)

    def write(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Append a line to the file `METRICS` or `EVALUATIONS`."""
        if self.folder is None:
            return
        line = {"step": step, **{key: _plain(value) for key, value in values.items()}}
        self.files[name].write(json.dumps(line) + "\n")
        if self.board is not None:
            for key, value in values.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    self.board.add_scalar(f"{name.removesuffix('.jsonl')}/{key}", value, step)

    def has(self, name: str, step: int) -> bool:
        """Return whether the file `METRICS` or `EVALUATIONS` has a line of a step."""
        return any(json.loads(line)["step"] == step for line in _lines_up_to(self.folder / name, step))

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish()


def check_wandb(project: str) -> None:
    """Raise InputError if a project is named but wandb, or tensorboard, which it needs, is not installed."""
    if project and not all(map(importlib.util.find_spec, ("wandb", "tensorboard"))):
        raise missing_library("config", "config.log.wandb", "wandb and tensorboard", "wandb")


def _wandb_run(folder: Path, arguments: Mapping[str, Any]) -> Any:
    import wandb

    id_file = folder / WANDB
    resume = {"id": id_file.read_text() if id_file.exists() else None, "resume": "allow"}
    run = wandb.init(**arguments, **resume, dir=str(folder), sync_tensorboard=True)
    with atomic_write(id_file) as path:
        path.write_text(run.id)
    return run


def _lines_up_to(path: Path, step: int) -> list[str]:
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                lines.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):  # the line is incomplete: the run was killed
            continue
    return lines


def _plain(value: Any) -> Any:
    """Return NaN and infinity, which JSON does not have, as text, and other values unchanged."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


class Meter:
    """Measures the speed of training, and how much time goes to other things than steps.

    Args:
        images: images in a global batch.
        devices: number of devices in the mesh of the run.
        flops: FLOPs of a step on one device; 0 if unknown.

    Attributes:
        memory: bytes that the program of a step takes on one device, None if unknown.
        overhead_seconds: seconds since the start that were not spent on steps, by reason.
    """

    def __init__(self, images: int, devices: int = 1, flops: float = 0.0):
        self.images, self.devices, self.flops = images, devices, flops
        self.memory: int | None = None
        device = jax.local_devices()[0]
        self.peak = peak_flops(device)
        if self.peak is None and device.platform != "cpu" and jax.process_index() == 0:
            say(f"no published peak is known of {device.device_kind!r} (PEAK_TFLOPS): no mfu")
        self.creation_time = time.perf_counter()
        self.overhead_seconds: Counter[str] = Counter()
        self.restart()

    def restart(self, now: float | None = None) -> None:
        """Start a new measurement."""
        self.start, self.steps, self.seconds_waiting = time.perf_counter() if now is None else now, 0, 0.0

    def count(self, seconds_waiting: float = 0.0, seconds_idle: float | None = None) -> None:
        """Count one step.

        Args:
            seconds_waiting: seconds that the host waited for the batch of the step.
            seconds_idle: seconds of these in which the device had nothing to compute, all by default. Only they are
                overhead.
        """
        self.steps += 1
        self.seconds_waiting += seconds_waiting
        self.overhead_seconds["waiting for data"] += seconds_waiting if seconds_idle is None else seconds_idle

    @contextlib.contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        """Exclude the time of a block from the speed, and count it as overhead."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.start += seconds
        self.overhead_seconds[reason] += seconds

    def goodput(self) -> tuple[float, str]:
        """Return the share of the time since the start that was spent in steps, and a text that says what took the
        rest.
        """
        total = max(time.perf_counter() - self.creation_time, 1e-9)
        share = max(0.0, 1 - self.overhead_seconds.total() / total)
        overhead = [
            f"{reason} {seconds / total:.0%}" for reason, seconds in self.overhead_seconds.most_common() if seconds
        ]
        return share, ", ".join([f"{share:.0%} of {total:.0f} s in steps", *overhead])

    def read(self, now: float | None = None) -> dict[str, float]:
        """Return speed and memory since the last call.

        Args:
            now: when the device had computed the last step that was counted; the time of the call by default.
        """
        now = time.perf_counter() if now is None else now
        steps = max(self.steps, 1)
        seconds_per_step = max(now - self.start, 1e-9) / steps
        seconds_waiting = self.seconds_waiting / steps
        self.restart(now)
        rate = self.images / seconds_per_step
        numbers = {
            "images_per_second": rate,
            "images_per_second_per_device": rate / self.devices,
            "seconds_per_step": seconds_per_step,
            "seconds_waiting_for_data": seconds_waiting,
            "goodput": self.goodput()[0],
        }
        if self.flops and self.peak:
            numbers["mfu"] = self.flops / seconds_per_step / self.peak
        if self.memory is not None:
            numbers["memory_bytes_per_device"] = self.memory
        return numbers | memory_in_use(jax.local_devices()[0].memory_stats() or {})


def memory_in_use(stats: Mapping[str, int]) -> dict[str, int]:
    """Return bytes in use now and at the peak, as far as the device reports them (CPUs report nothing)."""
    names = {"memory_in_use_bytes": "bytes_in_use", "memory_peak_bytes": "peak_bytes_in_use"}
    return {name: stats[key] for name, key in names.items() if key in stats}
