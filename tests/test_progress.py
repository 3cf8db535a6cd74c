"""Progress: no estimate before it means something, the same words in a terminal and in a log."""

import re

import pytest

from rococo_jax import progress as shown
from rococo_jax.progress import Count, be_quiet, progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when they are added."""
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
def test_estimates_begin_when_enough_was_measured(total, unit, course, clock):
    count = Count("drawing", total, unit)
    for seconds, more, words in course:
        clock[0] += seconds
        count.add(more, "loss 1.25" if "loss" in words else "")
        assert count.words() == f"drawing: {words}"


def test_a_bar_and_a_line_show_the_same_words(clock, monkeypatch, capsys):
    be_quiet(False)
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


def test_who_was_shown_a_part_is_shown_the_end(clock, capsys):
    with progress("fitting", 90, "fits") as advance:
        advance(40)
        clock[0] += 40.0
        advance(20)
        advance(30)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "fitting: 60 of 90 fits (0.5/s), 1 min left" and last.startswith("fitting: 90 of 90 fits")
