"""Files made from files: the index of a tar, the copy of a table, the map of an influence table, a table of hashes.

`remembered` returns such a file, and makes it again if one of its sources or the file itself has changed. It ends with

    record      JSON: format, host, source, the states of its sources (`FileState`) and the SHA-256 of its content
    length      of the record, 4 bytes
    digest      the SHA-256 of the file's name and its record

A file counts if its sources are in the recorded states. If another machine sees the same contents in other states, a
file without content records these in the cache folder, so that machines that share a file do not replace it.

Processes of a machine make a file once: the first one locks it. What killed processes left is removed when a process
first opens the folder, and files of the cache folder that are of no use when it first makes one.
"""

import contextlib
import functools
import hashlib
import io
import json
import mmap
import socket
from collections.abc import Callable, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.data.remote import FileState
from rococo_jax.errors import InputError
from rococo_jax.locks import hold
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_json, is_url, remove_old, target_name

_DIGEST, _LENGTH = 32, 4
_ATTEMPTS = 3

# Returns the states of the sources; None for one that does not exist.
States = Callable[[], Sequence[FileState | None]]
# Writes the content; the earlier content of the file, if there is any, may be used again. Returns the digest to record
# for a content that is not verified as a whole.
Make = Callable[[BufferedIOBase, memoryview | None], str | None]


class Kind(NamedTuple):
    """A kind of files made from files.

    Attributes:
        folder: below the cache folder.
        suffix: of the files; different for each kind.
        version: to increase when the content changes.
        is_beside: whether the file lies beside its source, as `.NAMEsuffix`, if that folder can be written.
        is_verified: whether the content is made in memory and verified as a whole. Otherwise it is written in parts,
            verified by its reader with the `recorded_digest`, and of no use after a change of its source.
    """

    folder: str
    suffix: str
    version: int
    is_beside: bool = False
    is_verified: bool = True


def _contents_in_key() -> Sequence[FileState | None]:
    return []


def remembered(kind: Kind, source: str, key: str, make: Make, states: States = _contents_in_key) -> Path | bytes:
    """Return the file made from a source; or its content, if it can be stored nowhere.

    Args:
        source: path or URL that names the file.
        key: distinguishes files that are made from one source in different ways, or from different contents.
        states: called before and after the sources are read; not necessary if the key has their contents.

    Raises:
        InputError: the sources change while they are read, or as `make`.
        OSError: a file that is written in parts cannot be stored.
    """
    if (file := find_remembered(kind, source, key, states)) is not None:
        return file
    content, recorded_states = None, ""
    for place in _places(kind, source, key):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold(place, wait=True))
            except OSError:
                if not kind.is_verified:
                    raise
                continue
            # Another process may have made it meanwhile.
            if (file := find_remembered(kind, source, key, states)) is not None:
                return file
            _remove_useless_files(cache_folder() / kind.folder, kind)
            if not kind.is_verified:
                _write(kind, place, source, lambda file: _fill(file, source, make, states, None))
                return place
            if content is None:
                content, recorded_states = _make_in_memory(kind, source, key, make, states)
            with contextlib.suppress(OSError):
                return _store(kind, place, source, key, content, recorded_states)
    return _make_in_memory(kind, source, key, make, states)[0] if content is None else content


def find_remembered(kind: Kind, source: str, key: str, states: States = _contents_in_key) -> Path | None:
    """Return the file made from a source if it exists and its sources have not changed; arguments as `remembered`."""
    files = {}
    for place in (*_places(kind, source, key), _place_of_states(kind, source, key)):
        _remove_leftovers(place.parent, kind)
        if (file := _read(kind, place)) is not None:
            files[place] = file
    current_states = _digest_of(states())
    contents = {record["content"] for record, _ in files.values() if record["states"] == current_states}
    return next((place for place, file in files.items() if file[1] and file[0]["content"] in contents), None)


def map_content(file: Path | bytes) -> memoryview:
    """Map the content of a file into memory without a check, for a file that was just returned by `remembered`."""
    return memoryview(file) if isinstance(file, bytes) else _split(file)[0]


def recorded_digest(file: Path) -> str:
    """Return the digest that `make` returned for a file that was just returned by `remembered`."""
    return json.loads(_split(file)[1])["content"]


def _location(source: str) -> str:
    return source if is_url(source) else str(Path(source).absolute())


def _places(kind: Kind, source: str, key: str) -> list[Path]:
    """Return where a file may lie, the preferred place first."""
    in_cache = cache_folder() / kind.folder / f"{hash_json([_location(source), key])[:24]}{kind.suffix}"
    if not kind.is_beside or is_url(source):
        return [in_cache]
    short_key = f".{hash_json(key)[:8]}" if key else ""
    return [Path(source).with_name(f".{Path(source).name}{short_key}{kind.suffix}"), in_cache]


def _place_of_states(kind: Kind, source: str, key: str) -> Path:
    """Return where the states of the sources are recorded that this machine sees, if another file has the content."""
    name = hash_json([_location(source), key, socket.gethostname()])
    return cache_folder() / kind.folder / f"{name[:24]}{kind.suffix}"


def _digest_of(states: Sequence[FileState | None]) -> str:
    return hash_json([state and state.to_json() for state in states])


def _fill(file: BufferedIOBase, source: str, make: Make, states: States, earlier: memoryview | None) -> tuple[str, str]:
    """Write the content, and return its digest and that of the states; "" if a later change might not change them.

    Raises InputError: the sources change each time while they are read.
    """
    for _ in range(_ATTEMPTS):
        before = states()
        is_settled = all([state is None or state.settle() for state in before])
        file.seek(0)
        file.truncate()
        digest = make(file, earlier) or ""
        if states() == before:
            return digest, _digest_of(before) if is_settled else ""
    raise InputError(source, "contents", "changed while it was read", "a file that nothing writes to")


def _make_in_memory(kind: Kind, source: str, key: str, make: Make, states: States) -> tuple[bytes, str]:
    """Return the content and the digest of the states."""
    files = (_read(kind, place) for place in _places(kind, source, key))
    earlier = next((file[1] for file in files if file is not None), None)
    buffer = io.BytesIO()
    _, recorded_states = _fill(buffer, source, make, states, earlier)
    return buffer.getvalue(), recorded_states


def _store(kind: Kind, place: Path, source: str, key: str, content: bytes, states: str) -> Path:
    """Write a file, or record that an existing one has the same content; return where the content is."""
    digest = hashlib.sha256(content).hexdigest()
    for existing in _places(kind, source, key):
        if (file := _read(kind, existing)) is not None and file[0]["content"] == digest:
            _write(kind, _place_of_states(kind, source, key), source, lambda _: (digest, states))
            return existing

    def write(file: BufferedIOBase) -> tuple[str, str]:
        file.write(content)
        return digest, states

    _write(kind, place, source, write)
    return place


def _write(kind: Kind, place: Path, source: str, write: Callable[[BufferedIOBase], tuple[str, str]]) -> None:
    """Write a file; `write` writes its content, and returns the digests of the content and of the states."""
    with atomic_write(place) as temporary, temporary.open("wb") as file:
        digest, states = write(file)
        about = {"format": _format(kind), "host": socket.gethostname(), "source": _location(source)}
        record = json.dumps(about | {"states": states, "content": digest}).encode()
        file.write(record + len(record).to_bytes(_LENGTH, "little") + _record_digest(place, record))


def _format(kind: Kind) -> str:
    return f"rococo_jax.{kind.folder} {kind.version}"


def _record_digest(place: Path, record: bytes) -> bytes:
    return hashlib.sha256(place.name.encode() + record).digest()


def _split(place: Path) -> tuple[memoryview, bytes, bytes]:
    """Return the content of a file, mapped into memory, its record and its digest. Raises OSError, ValueError."""
    with place.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # ValueError for an empty file
    end = len(mapped) - _DIGEST - _LENGTH
    start = end - int.from_bytes(mapped[max(0, end) : -_DIGEST], "little")
    if start < 0:
        raise ValueError("too short")
    return mapped[:start], bytes(mapped[start:end]), bytes(mapped[-_DIGEST:])


def _read_record(place: Path) -> tuple[dict[str, Any], memoryview] | None:
    """Return the record and the content of a file, which is not verified; None if it is missing or damaged."""
    try:
        content, record, digest = _split(place)
    except (OSError, ValueError):
        return None
    return (json.loads(record), content) if _record_digest(place, record) == digest else None


def _read(kind: Kind, place: Path) -> tuple[dict[str, Any], memoryview] | None:
    """Return the record and the content of a file, or None if it is missing, damaged or has another format."""
    file = _read_record(place)
    if file is None or file[0]["format"] != _format(kind):
        return None
    is_verified = not kind.is_verified or not file[1] or hashlib.sha256(file[1]).hexdigest() == file[0]["content"]
    return file if is_verified else None


@functools.cache
def _remove_leftovers(folder: Path, kind: Kind) -> None:
    """Remove once in a process what killed processes left: locks of this machine with their files, and old files."""
    with contextlib.suppress(OSError):
        hidden = [path for path in folder.iterdir() if path.name.startswith(".")]
        for lock in (path for path in hidden if path.name.endswith(f"{kind.suffix}.lock")):
            holder, target = lock.read_text(errors="replace"), lock.with_name(lock.name[1:].removesuffix(".lock"))
            if not holder or holder.endswith(f" of {socket.gethostname()}"):
                # The lock of a killed process can be taken, which removes its files; InputError: it is in use.
                with contextlib.suppress(OSError, InputError), hold(target):
                    pass
        remove_old(path for path in hidden if (target_name(path) or "").endswith(kind.suffix))


@functools.cache
def _remove_useless_files(folder: Path, kind: Kind) -> None:
    """Remove once in a process the files of a cache folder that this machine made from sources that are gone."""
    for path in folder.glob(f"*{kind.suffix}"):
        file = _read_record(path)
        if file is None:
            remove_old([path])
        elif file[0]["host"] == socket.gethostname() and _is_useless(kind, path, file[0]["source"]):
            path.unlink(missing_ok=True)


def _is_useless(kind: Kind, path: Path, source: str) -> bool:
    """Return whether the source of a file is gone, or was changed later and needs the file no more."""
    if is_url(source):
        return False
    try:
        changed_at = Path(source).stat().st_ctime
    except OSError:
        return True
    return not kind.is_verified and changed_at > path.stat().st_mtime
