"""Locate the checkout and the real data."""

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
REAL_DATA = Path(os.environ.get("ROCOCO_DATA", CHECKOUT.parent / "shared" / "data"))


def require_real_data(folder: Path = REAL_DATA) -> Path:
    """The folder of real data. Where it is missing the test is skipped, or fails with ROCOCO_REQUIRE_DATA set."""
    if folder.is_dir():
        return folder
    missing = f"no real data at {folder}; set ROCOCO_DATA to the folder that holds it"
    if os.environ.get("ROCOCO_REQUIRE_DATA"):
        pytest.fail(f"{missing} (ROCOCO_REQUIRE_DATA is set)")
    pytest.skip(missing)
