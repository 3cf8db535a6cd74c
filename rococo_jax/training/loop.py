"""The loop: feed, step, log one step late, evaluate, save, stop on SIGTERM.

Metrics of a step are fetched while the next one runs, so the device never waits for the host. `transfer_guard` forbids
implicit transfers between host and device. A state is saved only after its loss was found to be finite. SIGTERM ends
the run after the current step, with everything saved; the same command resumes it.
"""

import math
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.progress import progress
from rococo_jax.runtime import barrier, on_any_process
from rococo_jax.training.batch import Batch, place_batch
from rococo_jax.training.run_log import EVALUATIONS, METRICS, RunLog
from rococo_jax.training.state import TrainingCheckpoints, TrainState
from rococo_jax.training.step import Step
from rococo_jax.training.throughput import Meter, step_bytes

# Steps between two exchanges of whether a process received SIGTERM.
_ASK_EVERY = 10

Evaluate = Callable[[TrainState], Mapping[str, float]]


class Diverged(RuntimeError):
    """The loss or its gradient is not finite."""


@runtime_checkable
class Input(Protocol):
    """Batches in order, and how many images could not be decoded so far."""

    skipped: int

    def __next__(self) -> Batch: ...
    def get_state(self) -> dict[str, Any]: ...


class Outcome(NamedTuple):
    """The last state, and whether the run was stopped before its end."""

    state: TrainState
    stopped: bool


def run_loop(
    config: ConfigDict,
    step: Step,
    state: TrainState,
    frozen: Mapping[str, jax.Array],
    batches: Input,
    mesh: Mesh,
    checkpoints: TrainingCheckpoints,
    log: RunLog,
    evaluate: Evaluate | None = None,
    flops: float | None = None,
    on_step: Callable[[int, TrainState], None] = lambda done, state: None,
) -> Outcome:
    """Trains from the step of `state` to `config.steps`.

    Args:
        evaluate: called every `config.eval.every` steps and at the end; its `score`, if any, picks the best checkpoint.
        flops: of a step on one device, for the share of the chip's peak.
        on_step: called after every step, for tests and launchers.

    Raises:
        Diverged: the loss or its gradient is not finite; the last checkpoint is good.
    """
    first = int(state.step)
    with _stop_signal() as stop, progress("training", config.steps, "steps") as advance:
        advance(first)
        compiled, meter = None, None
        pending: tuple[int, Mapping[str, jax.Array], int] | None = None
        for number in range(first, config.steps):
            placed = place_batch(next(batches), mesh)
            if compiled is None:
                compiled = step.lower(state, frozen, placed).compile()
                # CPU processes must reach a program's first exchange within 30 seconds of each other, and some compile
                # faster than others.
                barrier("the first step")
                meter = Meter(config.batch_size, flops, step_bytes(compiled))
            with jax.transfer_guard("disallow"):
                state, metrics = compiled(state, frozen, placed)
            meter.count()
            if pending is not None:
                _settle(*pending, meter, log, config, checkpoints)
            pending = number + 1, metrics, batches.skipped
            advance(1)
            on_step(number + 1, state)
            done, last = number + 1, number + 1 == config.steps
            asked = (done % _ASK_EVERY == 0 or jax.process_count() == 1) and on_any_process(stop.asked)
            saves = done % config.checkpoint.every == 0 or last or asked
            evaluates = evaluate is not None and (last or (config.eval.every and done % config.eval.every == 0))
            if saves or evaluates:
                _settle(*pending, meter, log, config, checkpoints)
                pending, start = None, time.perf_counter()
                score = _evaluated(evaluate, state, done, log) if evaluates and not asked else None
                checkpoints.save(done, state, batches.get_state(), score)
                meter.pause(time.perf_counter() - start)
            if asked and not last:
                return Outcome(state, stopped=True)
    return Outcome(state, stopped=False)


def _settle(
    done: int,
    metrics: Mapping[str, jax.Array],
    skipped: int,
    meter: Meter,
    log: RunLog,
    config: ConfigDict,
    checkpoints: TrainingCheckpoints,
) -> None:
    """Fetches the metrics of a step that is done, stops the run where they are not finite, and writes the line."""
    values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
    if not (math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])):
        checkpoints.wait()
        good = checkpoints.latest()
        where = f"the checkpoint of step {good} is good" if good is not None else "no checkpoint was written before"
        raise Diverged(f"step {done}: loss {values['loss']}, gradient norm {values['gradient_norm']}; {where}")
    if done % config.log.every == 0 or done == config.steps or done == 1:
        log.write(METRICS, done, {**values, **meter.read(), "skipped_images": skipped})


def _evaluated(evaluate: Evaluate, state: TrainState, done: int, log: RunLog) -> float | None:
    figures = dict(evaluate(state))
    log.write(EVALUATIONS, done, figures)
    return figures.get("score")


class _stop_signal:
    """Within the block SIGTERM sets `asked`, instead of ending the process."""

    def __enter__(self) -> "_stop_signal":
        self.asked = False
        try:
            self.before = signal.signal(signal.SIGTERM, self._ask)
        except ValueError:  # not the main thread: the caller handles signals
            self.before = None
        return self

    def _ask(self, *_: object) -> None:
        self.asked = True

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
