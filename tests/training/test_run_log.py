"""Curves for TensorBoard: what a resumed run writes takes the place of what it does again, and of nothing else."""

import contextlib
import json
import struct
import time
from pathlib import Path

from rococo_jax.training.log import METRICS, TENSORBOARD, RunLog


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
    """As TensorBoard shows them: a session that starts at a step takes away what others had from there on."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for event in events_of(folder):
        if event.HasField("session_log"):
            curves = {name: [each for each in points if each[0] < event.step] for name, points in curves.items()}
        for value in event.summary.value:
            curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return curves


def test_a_resumed_run_writes_its_curves_over_what_it_does_again(tmp_path):
    for first, values in ((0, {1: 9.0, 2: 8.0, 3: 7.0, 4: 6.0}), (2, {3: 5.0})):
        log = RunLog(tmp_path, first, tensorboard=True)
        for step, loss in values.items():
            log.write(METRICS, step, {"loss": loss, "mfu": float("nan"), "note": "text"})
        log.close()
        time.sleep(1.1)  # files are named by the second
    assert shown(tmp_path / TENSORBOARD) == {"metrics/loss": [(1, 9.0), (2, 8.0), (3, 5.0)]}
    lines = (tmp_path / METRICS).read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ['{"step": 1', '{"step": 2', '{"step": 3']


def test_a_kill_while_a_run_resumes_leaves_its_log(tmp_path, monkeypatch):
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
