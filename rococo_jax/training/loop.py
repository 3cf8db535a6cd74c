"""The loop: feed, step, log one step late, evaluate, save, stop on SIGTERM and Ctrl-C.

Metrics of a step are fetched while the next one runs, so the device never waits for the host. `transfer_guard` forbids
implicit transfers between host and device. A state is saved only after its loss was found to be finite. SIGTERM and
Ctrl-C end the run after the current step, with everything saved; the same command resumes it.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.progress import progress
from rococo_jax.training.batch import Batch, place_batch
from rococo_jax.training.profiling import Profile, profiled_steps
from rococo_jax.training.programs import Programs
from rococo_jax.training.requests import SAVE, STOPS, Requests, stop_signals
from rococo_jax.training.run_log import EVALUATIONS, METRICS, RunLog
from rococo_jax.training.state import TrainingCheckpoints, TrainState
from rococo_jax.training.text_padding import text_tokens
from rococo_jax.training.throughput import Meter, StepFlops

Evaluate = Callable[[TrainState], Mapping[str, float]]


class Diverged(RuntimeError):
    """The loss or its gradient is not finite."""


@runtime_checkable
class Input(Protocol):
    """Batches in order, how many images could not be decoded so far, and the lengths that texts may be padded to
    (none where all batches have one).
    """

    skipped: int
    lengths: Sequence[int]

    def __next__(self) -> Batch: ...
    def get_state(self) -> dict[str, Any]: ...


class Outcome(NamedTuple):
    """The last state, and the signal that stopped the run before its end, or None."""

    state: TrainState
    stopped: str | None


def run_loop(
    config: ConfigDict,
    programs: Programs,
    state: TrainState,
    frozen: Mapping[str, jax.Array],
    batches: Input,
    mesh: Mesh,
    checkpoints: TrainingCheckpoints,
    log: RunLog,
    evaluate: Evaluate | None = None,
    flops: Callable[[int], StepFlops] | None = None,
    on_step: Callable[[int, TrainState], None] = lambda done, state: None,
) -> Outcome:
    """Trains from the step of `state` to `config.steps`.

    Args:
        evaluate: called every `config.eval.every` steps and at the end; its `score`, if any, picks the best checkpoint.
        flops: of a step on one device, by the length of its texts, for the shares of the chip's peak.
        on_step: called after every step, for tests and launchers.

    Raises:
        Diverged: the loss or its gradient is not finite; the last checkpoint is good.
    """
    first = int(state.step)
    profile = Profile(log.folder, profiled_steps(config.profile.steps))
    with (
        Requests(first) as requests,
        stop_signals(requests),
        progress("training", config.steps, "steps") as advance,
        contextlib.closing(profile),
    ):
        advance(first)
        saved_at = time.monotonic()
        meter = Meter(config.batch_size)
        settler = _Settler(config, log, checkpoints, meter)
        for number in range(first, config.steps):
            asked_at = time.perf_counter()
            try:
                batch = next(batches)
            except Exception:
                # Ctrl-C in a terminal ends the processes that decode images, too.
                if requests.wanted not in STOPS or jax.process_count() > 1 or number == first:
                    raise
                settler.settle()
                checkpoints.save(number, state, batches.get_state(), settler.skipped_updates)
                return Outcome(state, requests.wanted)
            waited = time.perf_counter() - asked_at
            placed = place_batch(batch, mesh)
            program, tokens = programs.of(state, frozen, placed, meter), text_tokens(batch)
            profile.before(number, state)
            with jax.transfer_guard("disallow"):
                state, metrics = program(state, frozen, placed)
            profile.after(number, state)
            meter.count(waited, flops and flops(tokens))
            settler.settle()
            settler.pending = number + 1, metrics, {"skipped_images": batches.skipped, "text_tokens": tokens}
            advance(1, settler.loss)
            on_step(number + 1, state)
            done, last = number + 1, number + 1 == config.steps
            if 0 < 60 * config.checkpoint.minutes < time.monotonic() - saved_at and jax.process_index() == 0:
                requests.ask(SAVE)
            asked = requests.due(done)
            saves = last or asked is not None or done % config.checkpoint.every == 0
            saves = saves or (config.checkpoint.keep_every and done % config.checkpoint.keep_every == 0)
            evaluates = evaluate is not None and (last or (config.eval.every and done % config.eval.every == 0))
            if saves or evaluates:
                settler.settle()
                with meter.paused("evaluating"):
                    score = _evaluated(evaluate, state, done, log) if evaluates and asked not in STOPS else None
                with meter.paused("saving"):
                    checkpoints.save(done, state, batches.get_state(), settler.skipped_updates, score)
                saved_at = time.monotonic()
            if (last or asked in STOPS) and jax.process_index() == 0:
                print(
                    f"step {done} of {config.steps}: {settler.loss}; {meter.goodput()[1]}", file=sys.stderr, flush=True
                )
            if asked in STOPS and not last:
                return Outcome(state, asked)
    return Outcome(state, None)


class _Settler:
    """Fetches the metrics of a step once it is done, stops the run where they are not finite, and writes the line.

    Attributes:
        pending: step, metrics and counts of the step that was begun last, or None.
        skipped_updates: how many updates of the run were left out because they were not finite.
        loss: that of the last settled step, in words, with the share of the chip's peak where that is known.
    """

    def __init__(self, config: ConfigDict, log: RunLog, checkpoints: TrainingCheckpoints, meter: Meter):
        self.config, self.log, self.checkpoints, self.meter = config, log, checkpoints, meter
        self.pending: tuple[int, Mapping[str, jax.Array], dict[str, int]] | None = None
        self.skipped_updates, self.loss, self._share = checkpoints.skipped_updates, "", ""

    def settle(self) -> None:
        """Does this for the pending step.

        Raises:
            Diverged: not finite, and `optimizer.skip_nonfinite` such updates were left out before.
        """
        if self.pending is None:
            return
        (done, metrics, counts), self.pending = self.pending, None
        values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        self.loss = f"loss {values['loss']:.4f}{self._share}"
        finite = math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])
        if not finite:
            self._skip_or_stop(done, f"loss {values['loss']}, gradient norm {values['gradient_norm']}")
        if done % self.config.log.every == 0 or done in (1, self.config.steps) or not finite:
            if self.config.optimizer.skip_nonfinite:
                counts = {**counts, "skipped_updates": self.skipped_updates}
            figures = self.meter.read()
            self._share = f", MFU {figures['mfu']:.1%}" if "mfu" in figures else ""
            self.log.write(METRICS, done, {**values, **figures, **counts})

    def _skip_or_stop(self, done: int, found: str) -> None:
        allowed = self.config.optimizer.skip_nonfinite
        if self.skipped_updates < allowed:
            self.skipped_updates += 1
            told = f"rococo: step {done}: {found}; update skipped, {self.skipped_updates} of at most {allowed}"
            print(told, file=sys.stderr, flush=True)
            return
        self.checkpoints.wait()
        raise Diverged(f"step {done}: {found}; {self.checkpoints.last_good()}")


def _evaluated(evaluate: Evaluate, state: TrainState, done: int, log: RunLog) -> float | None:
    figures = dict(evaluate(state))
    log.write(EVALUATIONS, done, figures)
    return figures.get("score")
