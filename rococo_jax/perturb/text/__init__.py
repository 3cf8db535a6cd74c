"""Split captions into words, group nouns by concept, measure the influence of words, and replace them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

# Kinds of replacements of a noun, defined in `replacement.py`, in the order of the RoCOCO paper's tables.
VARIANTS = ("same_concept", "diff_concept", "rand_voca", "danger")


def hash_key(key: Sequence[Any], size: int = 8) -> int:
    """Return an integer of `size` bytes from a key of JSON values; it is the same on every machine."""
    text = json.dumps(list(key), ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
