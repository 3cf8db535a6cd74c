"""The pairs of tars in WebDataset's form (`tar_index`), read by index: one read a sample, wherever it lies.

    open_tars("cc12m-{00000..01242}.tar")      a range; {a,b} and * are taken, too
    open_tars("datacomp/shards")               all tars of a folder, in the order of their names

On storage behind a URL a read that goes on where the last one of its tar ended fetches a block of 8 MB, from which the
next ones are answered; any other fetches the sample alone. `reads` and `seeks` count those of this process: a read is
a seek where it begins before the last one of its tar ended, or more than 256 kB behind it, which read-ahead covers.
"""

import bisect
import collections
import functools
import hashlib
import itertools
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.file_state import local_stamp
from rococo_jax.data.image_files import is_hidden
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.remote import file_system, forget_listings, matching_urls
from rococo_jax.data.sample_order import is_object_storage
from rococo_jax.data.tar_index import about_tars, open_batches, open_index
from rococo_jax.data.tar_samples import HEADER, check_of
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import progress, say
from rococo_jax.storage import hash_json, is_url

_BRACES, _RANGE = re.compile(r"\{([^{}]*)\}"), re.compile(r"(\d+)\.\.(\d+)")
_PACKED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2|txz)$", re.IGNORECASE)
_READ_AHEAD = 256 * 1024
_BLOCK = 8 * 2**20
_OPEN_FILES = 256
_MOST_TARS = 10**6
_MOST_COMMAS = 16  # that are looked for in a path


def is_tars(name: str) -> bool:
    """Whether a name is that of tars: a pattern or a file of that suffix, or a folder that holds some."""
    return name.lower().endswith(".tar") or (not is_url(name) and bool(_tars_in(Path(name))))


def _tars_in(folder: Path) -> list[str]:
    """The tars of a folder in the order of their names; none of what is no folder."""
    names = [path for path in folder.iterdir() if not is_hidden(path.name)] if folder.is_dir() else []
    return sorted(str(path) for path in names if path.suffix.lower() == ".tar")


def _say_of_packed(folder: Path) -> None:
    """Say how many packed tars of a folder are left out, as they cannot be read by index."""
    packed = [path.name for path in folder.iterdir() if _PACKED.search(path.name) and not is_hidden(path.name)]
    if packed:
        say(f"{folder}: {len(packed):,} packed tars left out; the first is {min(packed)}: unpack them (gunzip)")


def split_names(names: str) -> list[str]:
    """Names between commas, but for those in braces and in the names of files and folders that are there.

    >>> split_names("a-{00..11}.tar, b-{x,y}.tar")
    ['a-{00..11}.tar', 'b-{x,y}.tar']
    """
    pieces, parts = names.split(","), []
    while pieces:
        joined = list(itertools.accumulate(pieces, "{},{}".format))
        there = [part for part in joined[:_MOST_COMMAS] if _is_there(part.strip())]
        closed = [part for part in joined if part.count("{") == part.count("}")]
        part = (there[-1:] or closed[:1] or joined[-1:])[0]
        parts.append(part.strip())
        pieces = pieces[joined.index(part) + 1 :]
    return [part for part in parts if part]


def _is_there(name: str) -> bool:
    """Whether a file or folder has this name, or that before its options."""
    place, _, options = name.partition("?")
    return os.path.lexists(name) or ("," not in options and os.path.lexists(place))


def expand_tars(name: str) -> list[str]:
    """The tars that a name stands for, in order. Raises InputError where it stands for none, or for too many."""
    if is_url(name):
        forget_listings(name)
    if not name.lower().endswith(".tar"):
        _say_of_packed(Path(name))
        return _tars_in(Path(name))
    if not is_url(name) and Path(name).is_file():
        return [name]
    heads, rest = [""], name
    while "{" in rest:
        start, parts, end = _braces(rest)
        if len(heads) * len(parts) > _MOST_TARS:
            raise InputError(name, "pattern", "more than a million tars", "fewer")
        heads, rest = [head + rest[:start] + part for head in heads for part in parts], rest[end:]
    names = [head + rest for head in heads]
    found = [path for each in names for path in (_matching(each) if "*" in each else [each])]
    if not found:
        raise InputError(name, "pattern", "no tar of that name", "tars")
    return found


def _matching(pattern: str) -> list[str]:
    if is_url(pattern):
        return matching_urls(pattern)
    path = Path(pattern)
    return sorted(str(each) for each in path.parent.glob(path.name))


def _braces(name: str) -> tuple[int, list[str], int]:
    """Where the first braces of a name begin, what they stand for, and where they end."""
    match = _BRACES.search(name)
    if match is None:
        raise InputError(name, "pattern", "a brace without its other half", "{00000..01242} or {a,b}")
    limits = _RANGE.fullmatch(match[1])
    if limits is None:
        return match.start(), match[1].split(","), match.end()
    first, last = limits.groups()
    if int(last) < int(first):
        raise InputError(name, "pattern", match[0], "a range that rises")
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    numbers = range(int(first), min(int(last), int(first) + _MOST_TARS) + 1)
    return match.start(), [f"{number:0{width}}" for number in numbers], match.end()


class TarPairs(PairSource):
    """The samples of tars that have an image and a caption, numbered through all tars.

    Attributes:
        shards: number of samples of each tar.
        reads, seeks: of this process so far.
    """

    def __init__(self, tars: Sequence[str], index: Path | bytes, expected_hash: str = ""):
        self.tars, self.index = tuple(tars), index
        self._reader = open_batches(index)
        self.about = about_tars(self._reader)
        if expected_hash not in ("", self.hash()):
            raise InputError(self.tars[0], "tars", "written again meanwhile", "tars that do not change while in use")
        self.shards = tuple(tar["samples"] for tar in self.about)
        self._ends = list(itertools.accumulate(self.shards))
        self._columns = functools.lru_cache(maxsize=len(self.tars))(lambda tar: self._reader.get_batch(tar).columns)
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[int, _File] = collections.OrderedDict()
        self._last: dict[int, int] = {}
        self.reads = self.seeks = 0

    def __reduce__(self):
        return TarPairs, (self.tars, self.index, self.hash())

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        """Sample `index`. Raises InputError where its tar cannot be read, or is not the one that was indexed."""
        tar, row = self._row(index)
        name, offset, size, captions, check = (column[row].as_py() for column in self._columns(tar))
        image = self._read(tar, name, offset, size, check)
        return PairSample(image, f"{self.tars[tar]}/{name}", tuple(captions))

    def captioned(self, index: int) -> CaptionedImage:
        """Name and captions of an image, from the index alone."""
        tar, row = self._row(index)
        name, _, _, captions, _ = (column[row].as_py() for column in self._columns(tar))
        return CaptionedImage(f"{self.tars[tar]}/{name}", tuple(captions))

    def is_remote(self) -> bool:
        """Whether a tar lies in a bucket."""
        return any(map(is_object_storage, self.tars))

    def file_stamp(self, index: int) -> str:
        """As `local_stamp` of the tar that an image is in."""
        return local_stamp(self.tars[self._row(index)[0]])

    def _row(self, index: int) -> tuple[int, int]:
        """The tar of a sample, and its row there."""
        tar = bisect.bisect_right(self._ends, index)
        return tar, index - (self._ends[tar - 1] if tar else 0)

    def hash(self) -> str:
        """Hash of names, captions and bytes of the images in their order, by tar; not of where the tars are."""
        return hash_json([tar["hash"] for tar in self.about])

    def _read(self, tar: int, name: str, offset: int, size: int, check: bytes) -> bytes:
        start, end = offset - HEADER, offset + size
        with self._lock:
            follows = 0 <= start - self._last.get(tar, -_READ_AHEAD - 1) <= _READ_AHEAD
            self._last[tar] = end
            self.reads, self.seeks = self.reads + 1, self.seeks + (not follows)
            file = self._files.pop(tar, None) or _File(self.tars[tar])
            self._files[tar] = file
            while len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        try:
            data = file.read(start, end, follows)
        except InputError:
            raise
        except Exception as error:  # what storage services raise differs from one to the next
            raise InputError(self.tars[tar], "tar", first_line(error) or "nothing", "a tar that can be read") from None
        header, image = data[:HEADER], data[HEADER:]
        if check_of(header, hashlib.sha256(image).digest()) != check:
            wanted = "the bytes that were indexed; start again, and the tar is read anew"
            raise InputError(self.tars[tar], f"member {name}", "other bytes", wanted)
        return image


class _File:
    """An open tar. It is closed with the last read of it, which another thread may be making."""

    def __init__(self, path: str):
        self.path, self.lock = path, threading.Lock()
        self.file = None if is_url(path) else os.open(path, os.O_RDONLY)
        self.block = functools.lru_cache(maxsize=2)(lambda number: _fetch(path, number * _BLOCK, (number + 1) * _BLOCK))

    def read(self, start: int, end: int, follows: bool) -> bytes:
        if self.file is not None:
            return os.pread(self.file, end - start, start)
        if not follows:
            return _fetch(self.path, start, end)
        first, after = start // _BLOCK, -(-end // _BLOCK)
        with self.lock:
            blocks = b"".join(map(self.block, range(first, after)))
        return blocks[start - first * _BLOCK : end - first * _BLOCK]

    def __del__(self):
        if getattr(self, "file", None) is not None:
            os.close(self.file)


def _fetch(path: str, start: int, end: int) -> bytes:
    return file_system(path).cat_file(path, start=start, end=end)


def open_tars(name: str, *, allow_missing: bool = False) -> TarPairs:
    """The pairs of the tars that a name stands for; the first time, they are read through for their index.

    `allow_missing` leaves out samples without an image or a caption, as long as there are others.

    Raises:
        InputError: as `open_index`; no sample, or without `allow_missing` not every sample, has an image and a caption.
    """
    tars = expand_tars(name)
    with progress("indexing", len(tars), "tars") as advance:
        pairs = TarPairs(tars, open_index(tars, on_progress=advance))
    left_out = {key: sum(tar[key] for tar in pairs.about) for key in ("no_image", "no_caption")}
    count = sum(left_out.values())
    found = f"{left_out['no_image']} without an image and {left_out['no_caption']} without a caption"
    for tar in [tar for tar in pairs.about if tar["first"]][:1]:
        found += f"; the first is {tar['tar']}/{tar['first']}"
    if not len(pairs):
        wanted = "one with both: files one after another, of one name up to its first dot"
        raise InputError(name, "samples", found, wanted)
    if count:
        if not allow_missing:
            raise InputError(name, "samples", found, "all whole, or allow_missing_images")
        say(f"{name}: {count:,} samples left out: {found}")
    captions = sum(tar["captions"] for tar in pairs.about)
    say(f"{name}: {len(pairs):,} images, {captions:,} captions, one a line of NAME.txt")
    return pairs
