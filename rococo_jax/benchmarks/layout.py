"""Where a benchmark's folders are under a data folder: in the documented layout, or where people commonly have them.

A folder is looked for in the data folder and one level deeper, under its place in the layout (`sugar_crepe`), under
names that differ in case and punctuation alone (`SugarCrepe`), and, for annotations, under the last part of its place
(`annotations`) where the benchmark's files are in it. COCO's images may lie in any folder that has `val2014`, `val2017`
or another of its splits in it.
"""

import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from rococo_jax.benchmarks.benchmark import BenchmarkInfo

_COCO, _SPLIT = "coco/images", re.compile(r"(train|val|test)20\d\d")


def find_folder(info: BenchmarkInfo, role: str, data: Path) -> Path:
    """The folder of a role; its place in the layout where there is none."""
    place = info.folders[role]
    fitting = (folder for folder in _candidates(place, role, data) if _fits(info, role, place, folder))
    return next(fitting, data / place)


def nearest_folder(info: BenchmarkInfo, role: str, data: Path) -> Path | None:
    """What most resembles a folder that is not there: by name, or by a file of the benchmark's in it."""
    folders = [folder for base in (data, *_subfolders(data)) for folder in _subfolders(base)]
    holding = (folder for folder in folders if role == "annotations" and info.recognises(folder))
    plain = {_plain(folder.name): folder for folder in reversed(folders)}
    wanted = [_plain(name) for name in (info.folders[role].split("/")[0], info.name)]
    near = (name for each in wanted for name in difflib.get_close_matches(each, plain, 1, cutoff=0.7))
    return next(holding, None) or next((plain[name] for name in near), None)


def _candidates(place: str, role: str, data: Path) -> Iterator[Path]:
    yield data / place
    for base in (data, *_subfolders(data)):
        yield base / place
        yield from (folder for folder in _subfolders(base) if _plain(folder.name) == _plain(place))
        if role == "annotations":
            yield base / place.rpartition("/")[2]
        if place == _COCO:
            yield from (base, base / "images")


def _fits(info: BenchmarkInfo, role: str, place: str, folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if role == "annotations" and role not in info.optional:
        return info.recognises(folder)
    in_layout = folder.parts[-len(Path(place).parts) :] == Path(place).parts
    return in_layout or place != _COCO or any(_SPLIT.fullmatch(each.name) for each in _subfolders(folder))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("++", "pp"))


def _subfolders(folder: Path) -> tuple[Path, ...]:
    return _listed(folder, folder.stat().st_mtime_ns) if folder.is_dir() else ()


@functools.lru_cache(maxsize=256)
def _listed(folder: Path, changed: int) -> tuple[Path, ...]:
    del changed  # a folder is listed again when something was added to it
    return tuple(sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")))
