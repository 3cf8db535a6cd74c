"""Damage at random: strategies that change JSON values, lines and bytes, and what a reader may do with them.

`ROCOCO_FUZZ=N` sets how many examples a case gets (default 10, for seconds). `ROCOCO_FUZZ_SECONDS=S` repeats them,
drawn anew, until S seconds are over, and refuses memory above 2 GB; `ROCOCO_FUZZ_LOG=FILE` gets a line a case.
`tools/fuzz.py` sets them for an hour a reader.
"""

import copy
import functools
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rococo_jax.errors import as_input_error

EXAMPLES = int(os.environ.get("ROCOCO_FUZZ", "10"))
QUICK = EXAMPLES < 100
# A reader that takes longer, for files of some kilobytes, hangs. The process and its libraries take up to 0.9 GB.
MOST_SECONDS, MOST_MEMORY = 10, 2 * 10**9
FUZZ = settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate] if QUICK else list(Phase),
    deadline=None,
    derandomize=QUICK,
    database=None,
    suppress_health_check=list(HealthCheck),
)

_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([[], {}, "", -1])
)
_values = st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


def places_in(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all nodes of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places_in(item, (*path, key)))]


@st.composite
def changed_value(draw, value: Any) -> Any:
    """The value with up to three nodes replaced by others, or removed."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places_in(value)))
        if not path:
            return draw(_values)
        parent = functools.reduce(lambda node, key: node[key], path[:-1], value)
        if draw(st.booleans()):
            parent[path[-1]] = draw(_values)
        else:
            del parent[path[-1]]
    return value


@st.composite
def changed_bytes(draw, content: bytes) -> bytes:
    """The bytes cut short, with some flipped, or with others put in; mostly near the start, where headers are."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(content), 200)) | st.integers(0, len(content)))
        kind = draw(st.sampled_from(("flip", "put", "cut")))
        if kind == "flip" and place < len(content):
            content[place] ^= draw(st.integers(1, 255))
        elif kind == "put":
            content[place:place] = draw(st.binary(min_size=1, max_size=9))
        else:
            del content[place : place + draw(st.integers(1, 9) | st.just(len(content)))]
    return bytes(content)


def changed_json(content: bytes) -> st.SearchStrategy[bytes]:
    """JSON with other values."""
    return changed_value(json.loads(content)).map(lambda value: json.dumps(value).encode())


@st.composite
def changed_lines(draw, content: bytes) -> bytes:
    """JSON lines with other values, of which half have other bytes, too."""
    lines = draw(changed_value([json.loads(line) for line in content.splitlines()]))
    text = "".join(f"{json.dumps(line)}\n" for line in (lines if isinstance(lines, list) else [lines])).encode()
    return draw(changed_bytes(text)) if draw(st.booleans()) else text


def run(check: Callable[[], None]) -> None:
    """A property once, or for `ROCOCO_FUZZ_SECONDS`, within the bound on memory."""
    start, rounds, seconds = time.monotonic(), 0, -1.0
    while seconds < float(os.environ.get("ROCOCO_FUZZ_SECONDS", "0")):
        check()
        rounds, seconds = rounds + 1, time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if log := os.environ.get("ROCOCO_FUZZ_LOG"):
        case = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
        line = {"case": case, "seconds": round(seconds), "examples": rounds * EXAMPLES, "peak_megabytes": peak // 10**6}
        with Path(log).open("a") as file:
            file.write(json.dumps(line) + "\n")
    assert QUICK or peak < MOST_MEMORY, f"{peak} bytes"


def refuses(read: Callable[[], object]) -> None:
    """`read` returns, or raises what the command line prints as one line, before long."""

    def stop(*_):
        raise AssertionError(f"a reader took more than {MOST_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        read()
    except Exception as error:
        assert as_input_error(error) is not None, f"{type(error).__name__}: {error}"
        assert len(str(error)) < 20_000
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(path: Path, read: Callable[[Path], object], damage: Callable[[bytes], st.SearchStrategy[bytes]]) -> None:
    """`read` with the whole file, and then with a damaged one in its place."""
    content = path.read_bytes()

    @FUZZ
    @given(damage(content))
    def damaged(content):
        path.write_bytes(content)
        refuses(lambda: read(path))

    read(path)
    try:
        run(damaged)
    finally:
        path.write_bytes(content)
