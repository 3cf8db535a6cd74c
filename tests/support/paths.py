"""Where tests find the checkout and the real data."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
REAL_DATA = Path(os.environ.get("ROCOCO_DATA", CHECKOUT.parent / "shared" / "data"))
