"""Words of captions: splitting, concept groups, embedding influence, replacement."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

# What a noun is replaced by; `replacement.py` defines each. In the order of the RoCOCO paper's tables.
VARIANTS = ("same_concept", "diff_concept", "rand_voca", "danger")


def hash_key(key: Sequence[Any], size: int = 8) -> int:
    """`size` bytes that depend on all of a key of JSON values, the same on every machine."""
    text = json.dumps(list(key), ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
