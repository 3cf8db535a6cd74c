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


def test_the_start_does_not_count_and_nothing_is_estimated_before_enough_was_measured(clock):
    """As the demo: eight seconds until the first of 250 scenes, then 25 a second; "18 min left" was said."""
    count = Count("drawing", 250, "scenes")
    clock[0] += 8.0
    count.add(1, "")
    assert count.words() == "drawing: 1 of 250 scenes"
    clock[0] += 2.0
    count.add(50, "")
    assert count.words() == "drawing: 51 of 250 scenes (25.0/s)"
    clock[0] += 4.0
    count.add(100, "loss 1.25")
    assert count.words() == "drawing: 151 of 250 scenes (25.0/s), 4 s left, loss 1.25"
    clock[0] += 4.0
    count.add(99, "")
    assert count.words() == "drawing: 250 of 250 scenes (24.9/s)"


def test_a_long_work_is_estimated_once_a_fiftieth_is_done(clock):
    count = Count("training", 100_000, "steps")
    count.add(1, "")
    clock[0] += 60.0
    count.add(1000, "")
    assert "left" not in count.words()
    clock[0] += 60.0
    count.add(1000, "")
    assert count.words() == "training: 2001 of 100000 steps (16.7/s), 1 h 37 min left"


def test_a_work_of_unknown_length_has_a_rate_and_no_estimate(clock):
    count = Count("reading", None, "")
    count.add(1, "")
    clock[0] += 10.0
    count.add(20, "")
    assert count.words() == "reading: 21 (2.0/s)"


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
