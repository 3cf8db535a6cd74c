"""The image-text pairs of tars in the WebDataset format, read by index (`tar_index`): one read for each sample.

    open_tars("cc12m-{00000..01242}.tar")      a range; {a,b} and * work as well
    open_tars("datacomp/shards")               all tars of a folder, ordered by name

Tars behind a URL are read in one of two ways. A read that continues where the previous one of its tar ended fetches a
block of 8 MB, which also answers the following reads. Any other read fetches its sample alone. `reads` and `seeks`
count the reads of this process; a read is a seek if it begins before the end of the previous one of its tar, or more
than 256 kB behind it, which is what read-ahead covers.
"""

import bisect
import collections
import functools
import hashlib
import itertools
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.image_files import is_hidden
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.remote import file_system, forget_listings, matching_urls
from rococo_jax.data.sample_order import is_object_storage
from rococo_jax.data.tar_index import HEADER, Index, checksum, columns_of, open_indexes, read_summary
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import progress, say
from rococo_jax.storage import hash_json, is_url

_BRACES, _RANGE = re.compile(r"\{([^{}]*)\}"), re.compile(r"(\d+)\.\.(\d+)")
_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2|txz)$", re.IGNORECASE)
_READ_AHEAD = 256 * 1024
_BLOCK = 8 * 2**20
_MAX_OPEN_TARS = 256
_MAX_OPEN_INDEXES = 4096
_MAX_TARS = 10**6
# A path may contain this many commas.
_MAX_COMMAS = 16


def is_tars(name: str) -> bool:
    """Return whether a name stands for tars: a file or pattern with that suffix, or a folder that contains some.

    Compressed tars are recognised, so that `open_tars` can refuse them. Options may follow (`split_options`).
    """
    name, _ = split_options(name)
    if name.lower().endswith(".tar") or _COMPRESSED.search(name):
        return True
    return not is_url(name) and (bool(_tars_in(Path(name))) or _has_only_compressed_tars(Path(name)))


def split_options(name: str) -> tuple[str, str]:
    """Return the tars of `cc-{00..99}.tar?caption=KEY`, and the options behind them; a file may have such a name."""
    if "?" not in name or (not is_url(name) and os.path.lexists(name)):
        return name, ""
    tars, _, options = name.rpartition("?")
    return (tars, options) if "=" in options else (name, "")


def _tars_in(folder: Path) -> list[str]:
    """Return the tars of a folder, sorted by name; an empty list if it is not a folder."""
    names = [path for path in folder.iterdir() if not is_hidden(path.name)] if folder.is_dir() else []
    return sorted(str(path) for path in names if path.suffix.lower() == ".tar")


def _has_only_compressed_tars(folder: Path) -> bool:
    """Return whether a folder contains compressed tars, and beside them at most what img2dataset writes."""
    names = [path.name for path in folder.iterdir() if not is_hidden(path.name)] if folder.is_dir() else []
    compressed = [name for name in names if _COMPRESSED.search(name)]
    return bool(compressed) and all(name.endswith((".json", ".parquet")) for name in {*names} - {*compressed})


def _report_compressed_tars(folder: Path) -> None:
    """Report how many compressed tars of a folder are skipped, because they cannot be read by index."""
    names = [path.name for path in folder.iterdir() if _COMPRESSED.search(path.name) and not is_hidden(path.name)]
    if names:
        say(f"{folder}: {len(names):,} compressed tars left out; the first is {min(names)}: decompress them (gunzip)")


def split_names(names: str) -> list[str]:
    """Split names at commas, except for commas in braces and in the names of existing files and folders.

    >>> split_names("a-{00..11}.tar, b-{x,y}.tar")
    ['a-{00..11}.tar', 'b-{x,y}.tar']
    """
    pieces, parts = names.split(","), []
    start = 0
    while start < len(pieces):
        part, end = _first_name(pieces, start)
        parts.append(part.strip())
        start = end
    return [part for part in parts if part]


def _first_name(pieces: Sequence[str], start: int) -> tuple[str, int]:
    """Return the name that begins at a piece, and the piece behind it: an existing file, or with closed braces."""
    longest = pieces[start : start + _MAX_COMMAS]
    for end in range(len(longest), 0, -1):
        if _exists((name := ",".join(longest[:end])).strip()):
            return name, start + end
    open_braces, end = 0, start
    while end < len(pieces):
        open_braces += pieces[end].count("{") - pieces[end].count("}")
        end += 1
        if not open_braces:
            break
    return ",".join(pieces[start:end]), end


def _exists(name: str) -> bool:
    """Return whether a file or folder has this name, or has the part of it before the options."""
    path, _, options = name.partition("?")
    return os.path.lexists(name) or ("," not in options and os.path.lexists(path))


def expand_tars(name: str) -> list[str]:
    """Return the tars that a name stands for, in order. Raises InputError: none, or too many."""
    if is_url(name):
        forget_listings(name)
    if _COMPRESSED.search(name) or (not is_url(name) and _has_only_compressed_tars(Path(name))):
        expected = "tars that are not compressed, which can be read by index: decompress them (gunzip)"
        raise InputError(name, "tars", "compressed tars", expected)
    if not name.lower().endswith(".tar"):
        _report_compressed_tars(Path(name))
        return _tars_in(Path(name))
    if not is_url(name) and Path(name).is_file():
        return [name]
    # Every second piece is the text in braces.
    pieces = _BRACES.split(name)
    if any("{" in piece for piece in pieces[::2]):
        raise InputError(name, "pattern", "an unmatched brace", "{00000..01242} or {a,b}")
    choices = [_expand_braces(name, piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > _MAX_TARS:
        raise InputError(name, "pattern", "more than a million tars", "fewer")
    names = map("".join, itertools.product(*choices))
    tars = [path for each in names for path in (_matching(each) if "*" in each else [each])]
    if not tars:
        raise InputError(name, "pattern", "no tar of that name", "tars")
    return tars


def _matching(pattern: str) -> list[str]:
    if is_url(pattern):
        return matching_urls(pattern)
    path = Path(pattern)
    if "*" in str(path.parent):
        raise InputError(pattern, "pattern", "`*` in the name of a folder", "`*` in the file name only")
    return sorted(str(each) for each in path.parent.glob(path.name))


def _expand_braces(name: str, inside: str) -> list[str]:
    """Return the texts that braces of a name stand for, by what is inside."""
    limits = _RANGE.fullmatch(inside)
    if limits is None:
        return inside.split(",")
    first, last = limits.groups()
    if int(last) < int(first):
        raise InputError(name, "pattern", f"{{{inside}}}", "an increasing range")
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    numbers = range(int(first), min(int(last), int(first) + _MAX_TARS) + 1)
    return [f"{number:0{width}}" for number in numbers]


class TarPairs(PairSource):
    """The samples of tars that have an image and a caption, numbered through all tars.

    Attributes:
        summaries: of each tar, from its index (`tar_index.read_summary`).
        shards: number of samples of each tar.
        reads, seeks: of this process so far.
    """

    def __init__(self, tars: Sequence[str], indexes: Sequence[Index], expected_hash: str = ""):
        self.tars, self.indexes = tuple(tars), tuple(indexes)
        self.summaries = [read_summary(index) for index in self.indexes]
        if expected_hash not in ("", self.hash()):
            raise _change_error(self.tars[0])
        self.shards = tuple(tar["samples"] for tar in self.summaries)
        self._ends = list(itertools.accumulate(self.shards))
        self._columns = functools.lru_cache(_MAX_OPEN_INDEXES)(self._open_columns)
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[int, _File] = collections.OrderedDict()
        self._last_ends: dict[int, int] = {}
        self.reads = self.seeks = 0

    def __reduce__(self):
        return TarPairs, (self.tars, self.indexes, self.hash())

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        """Return sample `index`. Raises InputError: its tar cannot be read, or is not the one that was indexed."""
        tar, row = self._locate(index)
        columns = self._columns(tar)
        name, offset, size, captions, check = (
            columns[column][row].as_py() for column in ("name", "offset", "size", "captions", "check")
        )
        image = self._read(tar, name, offset, size, check)
        return PairSample(image, f"{self.tars[tar]}/{name}", tuple(captions))

    def captioned(self, index: int) -> CaptionedImage:
        """Return the name and the captions of an image, from the index alone."""
        tar, row = self._locate(index)
        name, captions = (self._columns(tar)[column][row].as_py() for column in ("name", "captions"))
        return CaptionedImage(f"{self.tars[tar]}/{name}", tuple(captions))

    def is_remote(self) -> bool:
        """Return whether a tar lies in a bucket."""
        return any(map(is_object_storage, self.tars))

    def image_hashes(self) -> Iterator[str]:
        """Yield the SHA-256 of each image, from the index alone."""
        for tar in range(len(self.tars)):
            yield from (digest.as_py().hex() for digest in self._columns(tar)["sha256"])

    def _open_columns(self, tar: int) -> dict[str, pa.Array]:
        """Open the index of a tar. Raises InputError: it was written again, because the tar has changed."""
        if read_summary(self.indexes[tar])["content"] != self.summaries[tar]["content"]:
            raise _change_error(self.tars[tar])
        return columns_of(self.indexes[tar])

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the tar of a sample, and its row there."""
        tar = bisect.bisect_right(self._ends, index)
        return tar, index - (self._ends[tar - 1] if tar else 0)

    def hash(self) -> str:
        """Return the hash of names, captions and images in their order, by tar; it is independent of the folder."""
        return hash_json([tar["hash"] for tar in self.summaries])

    def _read(self, tar: int, name: str, offset: int, size: int, check: bytes) -> bytes:
        start, end = offset - HEADER, offset + size
        with self._lock:
            is_sequential = 0 <= start - self._last_ends.get(tar, -_READ_AHEAD - 1) <= _READ_AHEAD
            self._last_ends[tar] = end
            self.reads += 1
            self.seeks += not is_sequential
            file = self._files.pop(tar, None) or _File(self.tars[tar])
            self._files[tar] = file
            while len(self._files) > _MAX_OPEN_TARS:
                self._files.popitem(last=False)
        try:
            data = file.read(start, end, is_sequential)
        except InputError:
            raise
        except Exception as error:  # what storage services raise differs from one to the next
            raise InputError(self.tars[tar], "tar", first_line(error) or "nothing", "a tar that can be read") from None
        header, image = data[:HEADER], data[HEADER:]
        if checksum(header, hashlib.sha256(image).digest()) != check:
            expected = "the bytes that were indexed; run the command again to index the tar again"
            raise InputError(self.tars[tar], f"member {name}", "other bytes", expected)
        return image


def _change_error(tar: str) -> InputError:
    return InputError(tar, "tars", "written again meanwhile", "tars that do not change while in use")


class _File:
    """An open tar. It is closed with its last read, which another thread may be doing."""

    def __init__(self, path: str):
        self.path, self.lock = path, threading.Lock()
        self.file = None if is_url(path) else os.open(path, os.O_RDONLY)
        self.block = functools.lru_cache(maxsize=2)(lambda number: _fetch(path, number * _BLOCK, (number + 1) * _BLOCK))

    def read(self, start: int, end: int, is_sequential: bool) -> bytes:
        if self.file is not None:
            return os.pread(self.file, end - start, start)
        if not is_sequential:
            return _fetch(self.path, start, end)
        first_block, end_block = start // _BLOCK, -(-end // _BLOCK)
        with self.lock:
            blocks = b"".join(map(self.block, range(first_block, end_block)))
        return blocks[start - first_block * _BLOCK : end - first_block * _BLOCK]

    def __del__(self):
        if getattr(self, "file", None) is not None:
            os.close(self.file)


def _fetch(path: str, start: int, end: int) -> bytes:
    return file_system(path).cat_file(path, start=start, end=end)


def open_tars(name: str, *, allow_missing: bool = False, caption: str = "") -> TarPairs:
    """Open the pairs of the tars that a name stands for. The first time, the tars are read to build their indexes.

    Args:
        caption: key of the captions in NAME.json, or `txt` for NAME.txt (`tar_index.read_tar`).
        allow_missing: skip samples without an image or a caption, as long as others remain.

    Raises:
        InputError: as `open_indexes`; no sample, or without `allow_missing` not every sample, has an image and a
            caption.
    """
    tars = expand_tars(name)
    with progress("indexing", len(tars), "tars") as advance:
        pairs = TarPairs(tars, open_indexes(tars, on_progress=advance, caption=caption))
    place = f"{caption!r} of NAME.json" if caption and caption != "txt" else "NAME.txt"
    counts = {key: sum(tar[key] for tar in pairs.summaries) for key in ("no_image", "no_caption")}
    incomplete_samples = f"{counts['no_image']} without an image and {counts['no_caption']} without a caption"
    for tar, summary in zip(tars, pairs.summaries, strict=True):
        if summary["first"]:
            incomplete_samples += f"; the first is {tar.rpartition('/')[2]}/{summary['first']}"
            break
    if not len(pairs):
        expected = "a sample with both: consecutive members whose names agree up to the first dot"
        expected += f"; the captions are {place}" if caption else ""
        raise InputError(name, "samples", incomplete_samples, expected)
    skipped = sum(counts.values())
    if skipped:
        if not allow_missing:
            raise InputError(
                name, "samples", incomplete_samples, "an image and a caption in each, or `allow_missing_images`"
            )
        say(f"{name}: {skipped:,} samples left out: {incomplete_samples}")
    captions = sum(tar["captions"] for tar in pairs.summaries)
    where = place if caption not in ("", "txt") else f"one per line of {place}"
    say(f"{name}: {len(pairs):,} images, {captions:,} captions, {where}")
    return pairs
