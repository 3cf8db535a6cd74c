"""The version, in a file of its own so that packaging and fingerprints read it without importing the package."""

import functools
import hashlib
from pathlib import Path

__version__ = "0.3.0"
# Subpackages that use embeddings but do not compute them. All others, new ones included, belong to the code of an
# embedding.
USERS_OF_EMBEDDINGS = frozenset(
    {"cli", "demo", "evaluation", "losses", "metrics", "report", "similarity", "studies", "sweep", "training"}
)


# The shipped models are identified by their own contents.
_NO_CODE = {"__pycache__", "shipped"}


@functools.cache
def code_hash(excluded: frozenset[str] = USERS_OF_EMBEDDINGS) -> str:
    """Return the SHA-256 of the code and the tables of the package, without some subpackages.

    Equal versions have equal code only if they are releases: a checkout, and an install from version control, change
    without a new version.
    """
    package, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        if path.is_file() and parts[0] not in excluded and _NO_CODE.isdisjoint(parts):
            content = path.read_bytes()
            digest.update(f"{'/'.join(parts)} {len(content)}\n".encode() + content)
    return digest.hexdigest()
