"""Find image files by the names that captions use for them, including all of COCO's names for an image."""

import hashlib
import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable

from PIL import Image

from rococo_jax.errors import InputError, require_folder
from rococo_jax.progress import say
from rococo_jax.texts import file_suffix

# For each folder, the names of its files by their name in Unicode's composed form (NFC).
Listings = dict[Path, dict[str, list[str]]]


@runtime_checkable
class ImageFile(Protocol):
    """An image file: a path, or an image inside a table."""

    def read_bytes(self) -> bytes:
        """Return the bytes of the file."""


def hash_image(file: ImageFile) -> str:
    """Return the SHA-256 of the bytes of an image file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def find_images(names: Iterable[str], folder: str | os.PathLike) -> tuple[dict[str, Path], list[str]]:
    """Find image files in a folder; return the files by name, and the names without a file.

    Names are relative to `folder` or to its parent: `val2014/a.jpg` is found below `images/` and below
    `images/val2014/`, and a list may have names of both kinds. An image of COCO without a file of its own name is
    searched by COCO's other names for it, in `folder` and its direct subfolders: `000000391895.jpg` finds
    `val2014/COCO_val2014_000000391895.jpg`, and the reverse. The two folders of Visual Genome are searched as well.
    Folders are listed once; no image is opened.

    Raises InputError: `folder` is missing or is not a folder.
    """
    folder, names = Path(folder), list(names)
    require_folder(folder, "image folder", "a folder of images")
    listings: Listings = {}
    present = _find_under(names, folder, listings)
    for inside in dict.fromkeys([folder.absolute().name, folder.resolve().name]):
        missing = [name for name in names if name not in present]
        present |= _find_under(missing, folder, listings, inside=inside)
    present |= _find_coco([name for name in names if name not in present], folder, listings)
    for inside in _VISUAL_GENOME:
        present |= _find_under([name for name in names if name not in present], folder / inside, listings)
    return present, [name for name in names if name not in present]


def _find_under(names: Iterable[str], folder: Path, listings: Listings, inside: str | None = None) -> dict[str, Path]:
    """Return files by name; with `inside`, only for names that start with that folder, which is `folder` itself."""
    present = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if inside is not None:
            if len(parts) < 2 or parts[0] != inside:
                continue
            parts = parts[1:]
        if path := _locate(folder, parts, listings):
            present[name] = path
    return present


def _locate(folder: Path, parts: Sequence[str], listings: Listings) -> Path | None:
    """Return the file of a name, in whichever Unicode form (NFC, NFD) it and its folders are stored.

    Raises InputError: there are files in both forms.
    """
    for part in parts[:-1]:
        if not part.isascii() and folder.is_dir() and not (folder / part).is_dir():
            part = next((each.name for each in folder.iterdir() if _composed(each.name) == _composed(part)), part)
        folder /= part
    stored = _list_files(folder, listings).get(_composed(parts[-1]), [])
    if len(stored) > 1:
        problem = (
            f"two files of this name, {' and '.join(map(ascii, stored))}, in spellings that Unicode calls the same"
        )
        raise InputError(folder, f"image {parts[-1]!r}", problem, "one of them, or another name")
    return folder / stored[0] if stored else None


def _composed(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)


# The folders of Visual Genome, as published and as the annotations of VL-CheckList name them.
_VISUAL_GENOME = tuple(f"{above}{name}" for above in ("", "data/") for name in ("VG_100K", "VG_100K_2"))
# An image has the same number in all releases of COCO: `COCO_val2014_000000391895.jpg` is now `000000391895.jpg`.
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+20\d\d_)?(\d{12}\.jpg)")


def coco_number(name: str) -> str | None:
    """Return the number of a COCO image from any of COCO's names for it; None for other names.

    >>> coco_number("val2014/COCO_val2014_000000391895.jpg"), coco_number("dog.jpg")
    ('000000391895.jpg', None)
    """
    match = _COCO_NAME.fullmatch(PurePosixPath(name).name)
    return match[1] if match else None


def _find_coco(names: Iterable[str], folder: Path, listings: Listings) -> dict[str, Path]:
    """Return the files of COCO images by any of their names, in `folder` and its direct subfolders."""
    numbers = {name: number for name in names if (number := coco_number(name)) is not None}
    if not numbers:
        return {}
    files: dict[str, Path] = {}
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
    for each in [folder, *subfolders]:
        for file_name in sorted(itertools.chain.from_iterable(_list_files(each, listings).values())):
            number = coco_number(file_name)
            if number is not None:
                files.setdefault(number, each / file_name)
    return {name: files[number] for name, number in numbers.items() if number in files}


def _list_files(folder: Path, listings: Listings) -> dict[str, list[str]]:
    """Return the names of the files in a folder by their composed form; a folder is listed at most once."""
    if folder not in listings:
        listings[folder] = {}
        if folder.is_dir():
            with os.scandir(folder) as entries:
                for name in sorted(entry.name for entry in entries if entry.is_file()):
                    listings[folder].setdefault(_composed(name), []).append(name)
    return listings[folder]


class Listing(NamedTuple):
    """The files below a folder.

    Attributes:
        names: of the images, relative to the folder and sorted.
        skipped: number of the other files by suffix.
    """

    names: list[str]
    skipped: Counter[str]

    @property
    def note(self) -> str:
        """A note on the files that are not images, such as "3 files of other kinds left out: .HEIC 3"."""
        if not self.skipped:
            return ""
        count = self.skipped.total()
        kinds = ", ".join(f"{suffix} {number:,}" for suffix, number in sorted(self.skipped.items())[:_MAX_KINDS])
        more = ", ..." if len(self.skipped) > _MAX_KINDS else ""
        return f"{count:,} {'file' if count == 1 else 'files'} of other kinds left out: {kinds}{more}"


def list_images(folder: str | os.PathLike) -> list[str]:
    """Return the names of the images below a folder, as `image_names`, and report which files are skipped.

    Raises InputError: `folder` is missing, is a file, or contains no images.
    """
    folder = Path(folder)
    require_folder(folder, "image folder", "a folder of images")
    listing = list_folder(folder)
    if not listing.names:
        problem = "no image files" + (f" ({listing.note})" if listing.note else "")
        raise InputError(folder, "image folder", problem, "at least one image")
    if listing.note:
        say(f"{folder}: {listing.note}")
    return listing.names


def image_names(folder: Path) -> list[str]:
    """Return the names of all image files below a folder, relative to it and sorted (`list_folder`)."""
    return list_folder(folder).names


def left_out_notes(*folders: Path) -> tuple[str, ...]:
    """Return a note for each folder that contains files which are not images."""
    listings = {folder: list_folder(folder) for folder in folders}
    return tuple(f"{folder}: {listing.note}" for folder, listing in listings.items() if listing.note)


def list_folder(folder: Path) -> Listing:
    """List the files below a folder; all listings of images use this function.

    An image file has a suffix that Pillow reads as an image, in upper or lower case. Hidden files and folders are
    skipped (`is_hidden`). Links are followed, except into a folder that contains them; a broken link is listed, so that
    reading it is an error. Other files are counted, except for those that usually accompany images, such as texts,
    tables and archives.
    """
    registered = Image.registered_extensions()
    skipped: Counter[str] = Counter()

    def below(path: str, name: str, above: tuple[str, ...]) -> Iterator[str]:
        real = os.path.realpath(path)
        if real in above:
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                suffix = Path(entry.name).suffix
                if entry.is_dir():
                    yield from below(entry.path, f"{name}{entry.name}/", (*above, real))
                elif registered.get(suffix.lower(), _NO_PICTURE) not in _NO_PICTURES:
                    yield name + entry.name
                elif not _accompanies_images(entry.name):
                    skipped[suffix or _NO_SUFFIX] += 1

    return Listing(sorted(below(str(folder), "", ())) if folder.is_dir() else [], skipped)


def _accompanies_images(name: str) -> bool:
    """Return whether a file is one of those that usually accompany images."""
    path = Path(name)
    return path.suffix.lower() in _COMPANIONS or path.stem.upper().rstrip("S") in _DOCUMENTS


_NO_PICTURE = "none"
_NO_SUFFIX = "without a suffix"
_MAX_KINDS = 8
_COMPANIONS = {
    ".txt", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".tab", ".parquet", ".arrow", ".feather", ".npy", ".npz",
    ".pkl", ".pt", ".safetensors", ".h5", ".md", ".rst", ".html", ".htm", ".xml", ".yaml", ".yml", ".toml", ".ini",
    ".log", ".py", ".sh", ".ipynb", ".tar", ".gz", ".zip", ".lock", ".part", ".sha256", ".md5", ".cff", ".bib", ".db",
}  # fmt: skip
_DOCUMENTS = {"README", "LICENSE", "LICENCE", "COPYING", "NOTICE", "CHANGELOG", "CITATION", "CHECKSUM", "SHA256SUM",
              "MD5SUM", "MAKEFILE", "DESKTOP", "THUMB"}  # fmt: skip
# Formats that Pillow registers although they are documents, films or data.
_NO_PICTURES = {_NO_PICTURE, "PDF", "EPS", "WMF", "MPEG", "BUFR", "GRIB", "HDF5", "PALM"}
# Folders that operating systems create, with copies of images or files that only look like images.
_SYSTEM_FOLDERS = {"__MACOSX", "@eaDir", "$RECYCLE.BIN"}


def is_hidden(name: str) -> bool:
    """Return whether a part of a path begins with a dot or is a folder that an operating system created.

    >>> is_hidden("cat/.ipynb_checkpoints/a.jpg"), is_hidden("__MACOSX/cat/._a.jpg"), is_hidden("./cat/a.jpg")
    (True, True, False)
    """
    return any(part[0] == "." != part or part in _SYSTEM_FOLDERS for part in PurePosixPath(name).parts)


_FILES_OF_SAVED_DATASET = ("dataset_dict.json", "dataset_info.json", "state.json")


def is_saved_dataset(folder: Path) -> bool:
    """Return whether a folder was written by `save_to_disk` of the `datasets` library."""
    return any((folder / name).is_file() for name in _FILES_OF_SAVED_DATASET)


# Names of files and folders that are recognised as splits.
USUAL_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing")


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, or those below it if the folder itself has neither these nor images.

    A snapshot of a data set of the hub has them in `data/`, in a folder for each configuration, or in one for each
    split. A file is returned itself.

    Raises InputError: they lie in several folders that are not splits.
    """
    if not folder.is_dir():
        return [folder]
    files = sorted(path for path in folder.iterdir() if file_suffix(path) == ".parquet" and not is_hidden(path.name))
    if files or image_names(folder):
        return files
    below = sorted(path for path in folder.rglob("*") if file_suffix(path) == ".parquet" and path.is_file())
    below = [path for path in below if not is_hidden(path.relative_to(folder).as_posix())]
    folders = list(dict.fromkeys(path.parent.relative_to(folder).as_posix() for path in below))
    has_one_parent = len({path.parent.parent for path in below}) == 1
    are_splits = has_one_parent and {PurePosixPath(each).name for each in folders} <= {*USUAL_SPLITS}
    if len(folders) > 1 and not are_splits:
        problem = f"Parquet files in {len(folders)} folders: {', '.join(folders[:6])}{', ...' * (len(folders) > 6)}"
        raise InputError(folder, "captions", problem, f"one of them, as {folder / folders[0]}")
    return below
