"""Evaluate on two devices, so that every program is divided over devices and is quickly compiled and run."""

import pytest

from tests.support.devices import all_devices_are


@pytest.fixture(scope="module", autouse=True)
def two_devices():
    """All devices of an evaluation; a file that compares other numbers of them has its own fixture."""
    with all_devices_are(2):
        yield
