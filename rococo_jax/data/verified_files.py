"""Cache files that end with the SHA-256 of their name and content, so that a damaged file is never used."""

import hashlib
import mmap
from pathlib import Path

_DIGEST_BYTES = hashlib.sha256().digest_size
_BLOCK = 2**22


def append_digest(path: Path, name: str) -> None:
    """Append the digest to a file that will be renamed to `name`."""
    with path.open("r+b") as file:
        digest = hashlib.sha256(name.encode())
        while block := file.read(_BLOCK):
            digest.update(block)
        file.write(digest.digest())


def map_content(path: Path) -> memoryview:
    """Map the content of a file into memory without a check, for a file that was verified before."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return memoryview(mapped)[:-_DIGEST_BYTES]


def map_verified(path: Path) -> memoryview | None:
    """Map the content of a file into memory; return None if it is missing or damaged."""
    try:
        content = map_content(path)
        with path.open("rb") as file:
            file.seek(len(content))
            digest = file.read()
    except (OSError, ValueError):  # mmap refuses an empty file
        return None
    computed = hashlib.sha256(path.name.encode())
    computed.update(content)
    return content if computed.digest() == digest else None
