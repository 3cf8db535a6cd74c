"""Evaluate on two devices, so that every program is divided over devices and is quickly compiled and run."""

import pytest

from tests.support.devices import all_devices_are


@pytest.fixture(scope="module", autouse=True)
def two_devices(request):
    """All devices of an evaluation, but where other numbers of them are compared."""
    with all_devices_are(8 if request.path.stem == "test_callback" else 2):
        yield
