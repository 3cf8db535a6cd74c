"""Damage at random: strategies that change JSON values, lines and bytes, and what a reader may do with them.

`ROCOCO_FUZZ=N` sets how many examples each reader gets (default 10, for seconds; 20000 takes about an hour a reader).
"""

import copy
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from rococo_jax.errors import as_input_error

EXAMPLES = int(os.environ.get("ROCOCO_FUZZ", "10"))
QUICK = EXAMPLES < 1000
FUZZ = settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate] if QUICK else list(Phase),
    deadline=None if QUICK else 10_000,
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
def changed_json(draw, value: Any) -> Any:
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


def refuses(read: Callable[[], object]) -> None:
    """`read` returns, or raises what the command line prints as one line."""
    try:
        read()
    except Exception as error:
        assert as_input_error(error) is not None, f"{type(error).__name__}: {error}"
        assert len(str(error)) < 20_000


def read_damaged(path: Path, content: bytes, read: Callable[[], object]) -> None:
    """`read` with a file of this content, which is as before afterwards."""
    before = path.read_bytes()
    try:
        path.write_bytes(content)
        refuses(read)
    finally:
        path.write_bytes(before)
