"""Fewer devices than the eight that the tests have, for code that takes all."""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import jax


@contextlib.contextmanager
def all_devices_are(count: int) -> Iterator[None]:
    """Let JAX find the first `count` of its devices alone: a program for eight takes several times as long."""
    devices = jax.devices()[:count]
    functions = {"devices": lambda: devices, "local_devices": lambda: devices, "device_count": lambda: count}
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(patch.object(jax, name, function))
        yield
