"""Unpack a ZIP or tar archive only if it is undamaged, fits on the disk and stays inside its folder.

A tar is read twice: first to its end, which verifies the checksum of its compression, adds up the sizes and checks
every name, and then to unpack it. By itself, `tarfile` treats an archive with damaged or truncated headers as one that
ends there, and never reads what follows the last file.
"""

import bz2
import contextlib
import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, first_line
from rococo_jax.safe_paths import stays_inside
from rococo_jax.storage import check_free_space, remove_folder

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
# `tarfile` reads extended headers (long names, PAX records) into memory; real ones have a few kB.
_LARGEST_HEADER = 1 << 20
_LARGEST_LINK = 4096
_COMPRESSIONS = (
    (b"\x1f\x8b", gzip.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"]\x00\x00", lzma.open),
    (b"BZh", bz2.open),
)
# System errors that the contents of an archive can cause; others are problems of the machine.
_ERRORS_OF_CONTENTS = {
    None,
    errno.EEXIST,
    errno.EILSEQ,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
}


class DamagedArchive(Exception):
    """An archive that cannot be unpacked, or that must not be."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a new folder, which is removed if that fails.

    Raises:
        DamagedArchive: it is not a ZIP or tar, is damaged, encrypted or truncated, or a name or link leads out of it.
        DiskFull: the disk has no space for its contents.
    """
    folder.mkdir(parents=True)
    with _complete_or_removed(folder):
        if zipfile.is_zipfile(archive) and not _is_tar(archive):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)


@contextlib.contextmanager
def _complete_or_removed(folder: Path) -> Iterator[None]:
    """Remove the folder after an error. Raises DamagedArchive: the contents of the archive caused it."""
    try:
        yield
    except BaseException as error:
        remove_folder(folder)
        if _is_caused_by_contents(error):
            raise DamagedArchive(first_line(error)) from None
        raise


def _is_caused_by_contents(error: BaseException) -> bool:
    """Return whether the contents of the archive caused an error; the libraries raise many classes for damage."""
    if isinstance(error, OSError):
        return error.errno in _ERRORS_OF_CONTENTS
    return isinstance(error, Exception) and not isinstance(error, InputError)


def _all_paths(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent) / name for name in (*folders, *files))


def _is_tar(archive: Path) -> bool:
    # A file that begins like a tar is one, even if its end looks like the directory of a ZIP.
    with archive.open("rb") as file:
        start = file.read(_BLOCK)
    return start[257:262] == b"ustar" or any(start.startswith(magic) for magic, _ in _COMPRESSIONS)


def _check_name(folder: Path, name: str) -> None:
    if name.rstrip("/") not in ("", ".") and not stays_inside(folder, name):
        raise ValueError(f"the name {name!r}, which leads out of the archive")


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        files, links = [], []
        for member in file.infolist():
            if member.flag_bits & 0x1:
                raise ValueError(f"{member.filename!r} is encrypted")
            _check_name(folder, member.filename)
            (links if stat.S_ISLNK(member.external_attr >> 16) else files).append(member)
        check_free_space(folder, sum(member.file_size for member in files))
        for member in files:
            file.extract(member, folder)  # reads to the end and verifies the checksum
        # Links come last, so that nothing is unpacked through them.
        for member in links:
            if member.file_size > _LARGEST_LINK:
                raise ValueError(f"the link {member.filename!r} of {member.file_size:,} bytes")
            _make_link(folder, member.filename, file.read(member).decode())


def _make_link(folder: Path, name: str, target: str) -> None:
    link = folder / name
    if Path(target).is_absolute() or not (link.parent / target).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the link {name!r} to {target!r}, out of the archive")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def _unpack_tar(archive: Path, folder: Path) -> None:
    size = 0
    with _open_tar(archive) as (tar, stream):
        for member in tar:
            _check_name(folder, member.name)
            size += member.size if member.isreg() else 0
            check_free_space(folder, size)
        # The block at which `tarfile` ended.
        if len(stream.last_read) < _BLOCK or stream.last_read.strip(b"\0"):
            raise ValueError(f"no end where the last file ends (byte {tar.offset:,}): cut short or damaged")
        while stream.read(_CHUNK):
            pass
    with _open_tar(archive) as (tar, _):
        tar.extractall(folder, filter="data")


@contextlib.contextmanager
def _open_tar(archive: Path) -> Iterator[tuple[tarfile.TarFile, "_BoundedStream"]]:
    with archive.open("rb") as file:
        start = file.read(8)
    opener: Any = next((opener for magic, opener in _COMPRESSIONS if start.startswith(magic)), open)
    with opener(archive, "rb") as file:
        stream = _BoundedStream(file)
        try:
            tar = tarfile.open(fileobj=stream, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
        except tarfile.ReadError as error:
            raise ValueError(f"neither a ZIP nor a tar file ({error})") from None
        with tar:
            yield tar, stream


class _BoundedStream:
    """A stream that refuses large reads: files are copied in small pieces, and headers are small."""

    def __init__(self, stream: Any):
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell
        self.last_read = b""

    def read(self, size: int) -> bytes:
        if size > _LARGEST_HEADER:
            raise ValueError(f"a header of {size:,} bytes")
        self.last_read = self._stream.read(size)
        return self.last_read


def without_links(part: Path, folder: Path) -> Path:
    """Return a part of an unpacked folder that can be moved away.

    That is the part itself or, if it is or contains a symbolic link, a copy beside the folder. In the copy, links are
    replaced by their targets, and files are hard links, which take no space.

    Raises DamagedArchive: a link leads out of the folder, into a circle or to nothing.
    """
    is_in_place = part.resolve() == folder.resolve() / part.relative_to(folder)
    if is_in_place and not any(path.is_symlink() for path in _all_paths(part)):
        return part
    copy = copy_beside(folder)
    remove_folder(copy)
    with _complete_or_removed(copy):
        _copy_resolved(part, copy, folder.resolve(), ())
    return copy


def copy_beside(folder: Path) -> Path:
    """Return the folder to which `without_links` copies a part of the folder."""
    return folder.with_name(f"{folder.name}.resolved")


def _copy_resolved(source: Path, target: Path, root: Path, ancestors: tuple[Path, ...]) -> None:
    """Copy a file or folder with all links replaced by their targets; `ancestors` are the folders that contain it."""
    try:
        real = source.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ValueError(f"the link {source.name!r} to something that is not in the archive") from None
    if not real.is_relative_to(root):
        raise ValueError(f"the link {source.name!r} leads out of the archive")
    if real in ancestors:
        raise ValueError(f"the link {source.name!r} to a folder that it is in")
    if not real.is_dir():
        _link_or_copy(real, target)
        return
    target.mkdir()
    for each in sorted(real.iterdir()):
        _copy_resolved(each, target / each.name, root, (*ancestors, real))


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOSPC):
            raise
        shutil.copy2(source, target)  # a file system without hard links
