"""Check names that come from outside (a hub, an archive, an index) before they become paths below a folder."""

import os
import re
from pathlib import Path

_DRIVE = re.compile(r"[A-Za-z]:")


def stays_inside(folder: str | os.PathLike, name: str) -> bool:
    """Return whether `folder / name` is below `folder`, whatever the name contains and whatever lies in its way.

    Refused are names that `is_inner_name` refuses, and those whose path runs through a symbolic link that leads out of
    the folder.

    >>> stays_inside("data", "test/a.parquet"), stays_inside("data", "test/../../a.parquet"), stays_inside("data", "/a")
    (True, False, False)
    """
    if not is_inner_name(name):
        return False
    root = Path(folder).resolve()
    return (root / name).resolve().is_relative_to(root)


def is_inner_name(name: str) -> bool:
    """Return whether a name is a relative path without `..`, backslashes, drive letters and zero bytes, and not empty.

    >>> is_inner_name("a/b"), is_inner_name("C:/b"), is_inner_name("a/.."), is_inner_name(".")
    (True, False, False, False)
    """
    if not name or name.startswith("/") or "\\" in name or "\0" in name or _DRIVE.match(name):
        return False
    parts = name.split("/")
    return ".." not in parts and any(part not in ("", ".") for part in parts)


def is_inner_file(name: str) -> bool:
    """Return whether a name is that of a file inside a folder; both slashes separate folders, as on Windows.

    >>> [name for name in ("a/b.jpg", "./b.jpg", ".", "..", "b.jpg/", "b.jpg/.") if is_inner_file(name)]
    ['a/b.jpg', './b.jpg']
    """
    name = name.replace("\\", "/")
    return is_inner_name(name) and name.rpartition("/")[2] not in ("", ".")
