"""The log of a run: one JSON line a logged step, and the same figures to TensorBoard.

METRICS.jsonl      step, loss and its parts, learning_rate, gradient_norm, logit_scale, images_per_second, ...
EVALUATIONS.jsonl  step and the figures of the evaluation

A run that resumes from a checkpoint drops the lines of later steps, which are done again.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS, EVALUATIONS, TENSORBOARD = "metrics.jsonl", "evaluations.jsonl", "tensorboard"


class RunLog:
    """Appends to the log of a working folder from a step on. `folder=None` writes nothing (other processes)."""

    def __init__(self, folder: Path | None, first_step: int, *, tensorboard: bool):
        self.folder, self.files, self.board = folder, {}, None
        if folder is None:
            return
        for name in (METRICS, EVALUATIONS):
            kept = _lines_up_to(folder / name, first_step)
            (folder / name).write_text("".join(kept))
            self.files[name] = (folder / name).open("a", buffering=1)
        if tensorboard:
            from tensorboardX import SummaryWriter

            self.board = SummaryWriter(str(folder / TENSORBOARD), purge_step=first_step + 1)

    def write(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """A line of `METRICS` or `EVALUATIONS`."""
        if self.folder is None:
            return
        self.files[name].write(
            json.dumps({"step": step, **{key: _plain(value) for key, value in values.items()}}) + "\n"
        )
        for key, value in values.items():
            if self.board is not None and isinstance(value, int | float) and math.isfinite(value):
                self.board.add_scalar(f"{name.removesuffix('.jsonl')}/{key}", value, step)

    def close(self) -> None:
        """Closes the files."""
        for file in self.files.values():
            file.close()
        if self.board is not None:
            self.board.close()


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
