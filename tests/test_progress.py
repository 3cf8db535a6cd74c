"""Progress: no estimate before it means something, the same words in a terminal and in a log."""

import re

import jax
import numpy as np
import pytest

from rococo_jax import progress as shown
from rococo_jax import runtime  # noqa: F401  reports compilations
from rococo_jax.progress import Count, be_quiet, overall_progress, progress, report_compilation, report_finished, say


@pytest.fixture
def clock(monkeypatch):
    """Stand in for a clock whose seconds pass when they are added."""
    now = [1000.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    return now


# Seconds, how many more are done, and what is said then.
SCENES = [
    (8, 1, "1 of 250 scenes"), (2, 50, "51 of 250 scenes (25.0/s)"),
    (4, 100, "151 of 250 scenes (25.0/s), 4 s left, loss 1.25"), (4, 99, "250 of 250 scenes (24.9/s)"),
]  # fmt: skip
STEPS = [
    (0, 1, "1 of 100000 steps"), (60, 1000, "1001 of 100000 steps (16.7/s)"),
    (60, 1000, "2001 of 100000 steps (16.7/s), 1 h 37 min left"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("total", "unit", "course"),
    [(250, "scenes", SCENES), (100_000, "steps", STEPS), (None, "", [(0, 1, "1"), (10, 20, "21 (2.0/s)")])],
    ids=["the start does not count", "nothing before a fiftieth is done", "no estimate of an unknown length"],
)
def test_the_remaining_time_is_shown_after_enough_measurements(total, unit, course, clock):
    count = Count("drawing", total, unit)
    for seconds, more, words in course:
        clock[0] += seconds
        count.add(more, "loss 1.25" if "loss" in words else "")
        assert count.words() == f"drawing: {words}"


def test_rates_exclude_intervals_with_a_compilation(clock):
    """Ten items a second, and two programs: one for the first shape, another in the middle."""
    count = Count("embedding", 1000, "captions")
    lines = []
    for seconds, compiles in [(120.0, True), (1.0, False), (60.0, True), (5.0, False)]:
        if compiles:
            report_compilation()
        clock[0] += seconds
        count.add(10 if compiles else round(10 * seconds), "")
        lines.append(count.words().removeprefix("embedding: "))
    assert lines == [
        "10 of 1000 captions",
        "20 of 1000 captions (10.0/s)",
        "30 of 1000 captions (10.0/s)",
        "80 of 1000 captions (10.0/s), 1 min left",
    ]


def test_cached_items_count_as_finished_but_not_in_the_rate(clock):
    count = Count("embedding", 100, "images", done=60)
    assert count.words() == "embedding: 60 of 100 images"
    clock[0] += 50.0
    count.add(0, "")
    count.add(10, "")
    assert count.words() == "embedding: 70 of 100 images"
    clock[0] += 5.0
    count.add(10, "")
    assert count.words() == "embedding: 80 of 100 images (2.0/s), 10 s left"


def test_rates_exclude_compilations_that_jax_reports(clock):
    """A jitted function compiles once for each shape; the display leaves out those intervals and no others."""
    double = jax.jit(lambda values: values * 2)
    arrays = {size: jax.device_put(np.zeros(size)) for size in (3, 4)}
    count = Count("embedding", None, "")
    rates = []
    for size in (3, 3, 4, 4):
        double(arrays[size])
        clock[0] += 1.0
        count.add(size, "")
        rates.append(count.words().removeprefix("embedding: "))
    assert rates == ["3", "6 (3.0/s)", "10 (3.0/s)", "14 (3.5/s)"]


def test_a_quiet_command_does_not_silence_later_commands_of_the_process(tmp_path, refusal, capsys):
    refusal("evaluate", tmp_path, "--data", tmp_path, "--benchmarks", "rococo", "--out", tmp_path / "out", "--quiet")
    say("heard")
    with be_quiet():
        say("not heard")
        with be_quiet(False):
            say("heard again")
        say("not heard either")
    assert capsys.readouterr().err.split("\n") == ["heard", "heard again", ""]


def test_a_progress_bar_and_a_progress_line_show_the_same_text(clock, monkeypatch, capsys):
    said = {}
    for terminal in (False, True):
        monkeypatch.setattr(shown.sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        with progress("drawing", 40, "scenes") as advance:
            advance(1)
            clock[0] += 10.0
            advance(9)
            if terminal:
                advance(0)
        said[terminal] = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    words = "drawing: 10 of 40 scenes (0.9/s), 33 s left"
    assert words in said[False] and words in " ".join(said[True].split())


def test_a_final_line_is_printed_if_a_progress_line_was_printed(clock, capsys):
    with progress("fitting", 90, "fits") as advance:
        advance(40)
        clock[0] += 40.0
        advance(20)
        advance(30)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "fitting: 60 of 90 fits (0.5/s), 1 min left" and last.startswith("fitting: 90 of 90 fits")


def test_the_overall_remaining_time_excludes_work_that_was_already_done(clock, monkeypatch, capsys):
    """Four models of 100 inputs each: one takes 30 seconds, one has its results already, two are to come."""
    with overall_progress(400) as overall:
        assert overall.words() == "overall 0%"
        clock[0] += 30.0
        report_finished(100)
        assert overall.words() == "overall 25%, 1 min left"
        overall.drop(100)
        assert overall.words() == "overall 33%, 1 min left"
        clock[0] += 20.0
        with progress("embedding", 40, "images") as advance:
            advance(1)
            clock[0] += 10.0
            advance(9)
        report_finished(100)
        assert overall.words() == "overall 67%, 30 s left"
        monkeypatch.setattr(shown.sys.stderr, "isatty", lambda: True, raising=False)
        with progress("ranking", 40, "blocks") as advance:
            advance(1)
            clock[0] += 10.0
            advance(9)
            advance(0)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "embedding: 10 of 40 images (0.9/s), 33 s left; overall 33%, 30 s left" in lines
    assert "overall 67%, 20 s left" in " ".join(lines.split())
    with overall_progress(10, is_shown=False) as overall, progress("embedding", 40, "images") as advance:
        clock[0] += 60.0
        advance(1)
        report_finished(10)
    assert "overall" not in capsys.readouterr().err and overall.done == 0
