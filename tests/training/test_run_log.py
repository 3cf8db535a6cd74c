"""The log of a run: its curves, what a resumed run writes over, rates, and where the time went."""

import contextlib
import json
import struct
import time
import types
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.data.training_input import TrainingInput
from rococo_jax.training import hooks, log, loop, program
from rococo_jax.training.batch import Batch, Images, Texts, decode_counts, encode_counts
from rococo_jax.training.hooks import Log
from rococo_jax.training.inputs.batches import PairBatches
from rococo_jax.training.log import METRICS, TENSORBOARD, Meter, RunLog
from rococo_jax.training.state import TrainingCheckpoints, TrainState
from tests.support.tiny_runs import mesh_of


def events_of(folder):
    """The events of all files in the order of writing: records of a length, its check, the event, its check."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            yield Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length


def shown(folder) -> dict[str, list[tuple[int, float]]]:
    """Return values as TensorBoard shows them: a session that starts at a step hides earlier values from there on."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for event in events_of(folder):
        if event.HasField("session_log"):
            curves = {name: [each for each in points if each[0] < event.step] for name, points in curves.items()}
        for value in event.summary.value:
            curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return curves


def test_a_resumed_run_overwrites_the_curves_of_repeated_steps(tmp_path):
    for first, values in ((0, {1: 9.0, 2: 8.0, 3: 7.0, 4: 6.0}), (2, {3: 5.0})):
        run_log = RunLog(tmp_path, first, tensorboard=True)
        for step, loss in values.items():
            run_log.write(METRICS, step, {"loss": loss, "mfu": float("nan"), "note": "text"})
        run_log.close()
        time.sleep(1.1 if first == 0 else 0)  # files are named by the second
    assert shown(tmp_path / TENSORBOARD) == {"metrics/loss": [(1, 9.0), (2, 8.0), (3, 5.0)]}
    lines = (tmp_path / METRICS).read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ['{"step": 1', '{"step": 2', '{"step": 3']


def test_a_run_killed_while_it_resumes_keeps_its_log(tmp_path, monkeypatch):
    lines = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (1, 2, 3)]
    (tmp_path / METRICS).write_text("".join(lines))

    def killed(path, text):
        path.open("w").close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "write_text", killed)
        RunLog(tmp_path, 2, tensorboard=False)
    assert (tmp_path / METRICS).read_text() == "".join(lines)
    RunLog(tmp_path, 2, tensorboard=False).close()
    assert (tmp_path / METRICS).read_text() == "".join(lines[:2])


def test_the_meter_measures_the_steps_since_its_last_reading(monkeypatch):
    monkeypatch.setitem(program.PEAK_TFLOPS, "cpu", 989.0)
    monkeypatch.setattr(log, "time", types.SimpleNamespace(perf_counter=lambda: 100.0))
    meter = Meter(8, devices=4, flops=2e12)  # of a mesh, whatever else the machine has
    meter.memory, meter.start = 4, 98.0
    for _ in range(4):
        meter.count()
    found = meter.read()
    assert found["seconds_per_step"] == 0.5 and found["memory_bytes_per_device"] == 4
    assert found["images_per_second_per_device"] == found["images_per_second"] / 4 == 4
    assert found["mfu"] == pytest.approx(2e12 / 0.5 / 989e12)
    share, words = meter.goodput()
    assert share == found["goodput"] == 1.0 and words.endswith(" s in steps")
    meter.count()  # nothing is left of the reading before
    again = meter.read()
    assert again["mfu"] == pytest.approx(2e12 / again["seconds_per_step"] / 989e12)
    in_use = log.memory_in_use({"bytes_in_use": 5, "peak_bytes_in_use": 7, "bytes_limit": 9})
    assert in_use == {"memory_in_use_bytes": 5, "memory_peak_bytes": 7}


def test_goodput_lists_the_time_outside_of_steps_by_reason(monkeypatch):
    clock = types.SimpleNamespace(seconds=50.0)
    clock.perf_counter = lambda: clock.seconds
    monkeypatch.setattr("rococo_jax.training.log.time", clock)
    meter = Meter(8)
    for reason, seconds in (("compiling", 20.0), ("saving", 2.0), ("evaluating", 10.0), ("saving", 3.0)):
        with meter.paused(reason):
            clock.seconds += seconds
    for _ in range(3):
        clock.seconds += 20
        meter.count(5.0)
    clock.seconds += 5
    share, words = meter.goodput()
    # 100 s, of which 20 + 5 + 10 are named, and 3 x 5 were waited.
    assert share == pytest.approx(0.5)
    assert words == "50% of 100 s in steps, compiling 20%, waiting for data 15%, evaluating 10%, saving 5%"
    assert meter.read()["seconds_per_step"] == pytest.approx(65 / 3)


class Busy:
    """A number that a device, which works on one step after another, has computed at `until`."""

    def __init__(self, until: float):
        self.until = until

    def block_until_ready(self):
        time.sleep(max(0.0, self.until - time.perf_counter()))

    def __array__(self, dtype=None, copy=None):
        self.block_until_ready()
        return np.ones((), dtype)


def run_on_slow_device(monkeypatch, steps, device, host, hook):
    """Run the loop with a device that takes `device` seconds a step and an input that takes `host` seconds a batch."""
    state, nothing = TrainState(jnp.zeros((), jnp.int32), {}, {}, {}), np.zeros(0, np.int32)
    free_at = [time.perf_counter()]
    batch = Batch(Images(), Texts(), nothing, {}, {})

    class Slow:
        counts: ClassVar = {}

        def __next__(self):
            if len(free_at) == 1:
                hook.meter.restart()  # without what Python and the type checks do at first calls
            time.sleep(host)
            return batch

        def get_state(self):
            return {}

    def program(state, batch):
        free_at.append(max(time.perf_counter(), free_at[-1]) + device)
        return state, {"loss": Busy(free_at[-1]), "gradient_norm": Busy(free_at[-1])}

    monkeypatch.setattr(loop, "place_batch", lambda batch, mesh: batch)
    registry = hooks.Hooks(RunLog(None, 0, tensorboard=False))
    registry.add(hook.after_step, every=1)
    with contextlib.closing(loop.StopOnSignal()) as stop:
        compile_step = lambda state, batch: program  # noqa: E731
        loop.run_loop(steps, state, Slow(), mesh_of(1), compile_step, registry, stop, lambda done, state: None)


def log_of(file: RunLog, every: int, steps: int, meter: Meter) -> Log:
    """The hook that reads the meter; the loss is finite, so that it needs no checkpoints."""
    return Log(file, every, range(steps), meter, object.__new__(TrainingCheckpoints))


@pytest.mark.parametrize(("device", "host", "idle"), [(0.10, 0.06, 0.0), (0.05, 0.15, 0.10)])
def test_waiting_for_data_counts_as_overhead_only_while_the_device_is_idle(monkeypatch, device, host, idle):
    """An input beside a slower step costs nothing; of a slower input the difference is lost."""
    steps, meter = 6, Meter(8)
    log_hook = log_of(RunLog(None, 0, tensorboard=False), steps, steps, meter)
    run_on_slow_device(monkeypatch, steps, device, host, log_hook)
    # A busy machine adds some; every wait would be 0.36 s and 0.9 s.
    assert meter.overhead_seconds["waiting for data"] == pytest.approx((steps - 1) * idle, abs=0.12)


@pytest.mark.parametrize(("device", "host"), [(0.2, 0.0), pytest.param(0.01, 0.2, marks=pytest.mark.slow)])
def test_every_line_has_the_speed_of_the_steps_since_the_previous_line(tmp_path, monkeypatch, device, host):
    """The first line is of one step and the last of half a period, beside a slow device and behind a slow input."""
    meter = Meter(8)
    log_hook = log_of(RunLog(tmp_path, 0, tensorboard=False), 4, 10, meter)
    run_on_slow_device(monkeypatch, 10, device, host, log_hook)
    log_hook.flush()  # as saving does at the end
    lines = map(json.loads, (tmp_path / METRICS).read_text().splitlines())
    speeds = {line["step"]: line["seconds_per_step"] for line in lines}
    assert list(speeds) == [1, 4, 8, 10]
    # One step too many or too few would give 0.1 or 0.4 in the first line, and 0.13 or 0.4 in the last; a busy machine
    # adds some.
    assert speeds == pytest.approx(dict.fromkeys(speeds, 0.2), abs=0.06)


def test_counts_of_a_resumed_run_continue_from_its_checkpoint():
    """Three images were replaced before the stop and one after it: the log says four, as of an unbroken run."""

    class Arrays(TrainingInput):
        def __init__(self):
            self.step = 0

        def __next__(self):
            self.step += 1
            ids = np.zeros((2, 4), np.int32)
            lost = {"skipped_images": np.int32(1), "cut_texts": np.int32(2), "equal_altered_texts": np.int32(0)}
            numbers = {"image_id": np.arange(2, dtype=np.int32)}
            return {"pixels": np.zeros((2, 4, 4, 3), np.uint8), "ids": ids, "text_mask": ids > 0, **numbers, **lost}

        def get_state(self):
            return {"next_step": self.step}

        def set_state(self, state):
            self.step = state["next_step"]

        def close(self):
            pass

    lost = {"skipped_images": 0, "cut_texts": 0, "equal_altered_texts": 0}
    stopped, resumed = PairBatches(Arrays(), [], lost), PairBatches(Arrays(), [], lost)
    for _ in range(3):
        next(stopped)
    resumed.set_state(json.loads(json.dumps(stopped.get_state())))
    next(resumed)
    assert resumed.counts == {"skipped_images": 4, "cut_texts": 8, "equal_altered_texts": 0}
    assert resumed.arrays.step == 4


def test_counts_of_many_processes_are_added_without_overflow():
    """The sum of the counts needs more than 32 bits, although each count fits."""
    counts = {"cut_texts": 2**31 - 1, "skipped_images": 3, "request:stop": 1}
    rows = np.concatenate([encode_counts(counts, devices=2)] * 2048)
    assert rows.dtype == np.int32 and rows.shape == (4096, 3, 2)
    assert decode_counts(counts, rows.sum(0, dtype=np.int32)) == {name: 2048 * n for name, n in counts.items()}
