"""Benchmarks, their descriptions, the registry, and where their folders are.

A new benchmark is one file: it builds a `Benchmark` from its published files and registers a `BenchmarkInfo`. Files of
this package are named in `MODULES`; other packages name theirs as entry points of the group `rococo_jax.benchmarks`.

A folder is looked for in the data folder and one level deeper, under its place in the layout (`sugar_crepe`), under
names that differ in case and punctuation alone (`SugarCrepe`), and, for annotations, under the last part of its place
(`annotations`) where the benchmark's files are in it. COCO's images may lie in any folder that has `val2014`, `val2017`
or another of its splits in it.
"""

import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.image_sets import CorruptedImages
from rococo_jax.benchmarks.lost_input import LostInput, take_images
from rococo_jax.benchmarks.pooling import Headline, Pool
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.benchmarks.variants import ALL_KINDS, UNCORRUPTED, Variant
from rococo_jax.data.downloads import Download
from rococo_jax.data.image_files import find_images, refuse_missing_images
from rococo_jax.data.images import FileImages, ImageSet
from rococo_jax.errors import InputError, unknown_name

MODULES = (
    *("rococo.benchmark", "sugarcrepe", "hard_positives", "valse", "aro", "crepe", "two_by_two"),
    *("which_image", "negbench", "whatsup", "half_truths", "scam", "spec"),
    *("plain_choices", "classes", "cue_conflict"),
)
# The benchmarks of these modules, in the order in which tables print them.
NAMES = (
    *("rococo", "sugarcrepe", "sugarcrepe_pp", "hard_positives", "valse", "aro", "coco_order", "crepe", "winoground"),
    *("colorswap", "bivlc", "eqben", "cola", "mmvp", "svo_probes", "negbench", "whatsup", "negbench_retrieval"),
    *("half_truths", "scam", "vismin", "spec", "imagecode", "choices"),
    *("cifar10", "cue_conflict", "imagenet16", "classes"),
)
ENTRY_POINTS = "rococo_jax.benchmarks"


@dataclasses.dataclass(frozen=True, eq=False)
class Benchmark:
    """Tables of images and texts, each row to be embedded once, and the tasks over them.

    Attributes:
        name: as registered.
        images: names of the originals, as the annotations spell them.
        texts: strings as they are to be embedded.
        image_sets: by name, `originals` first. Originals and what is made of them (mixed, corrupted) have one image for
            each of `images`; `crops` has one for each part of an image, `out_NAME` those of another folder.
        tasks: all tasks; a baseline before the variants that are measured against it.
        notes: what a reader of the results must know, one sentence each; those of `lost` are added.
        data: what a reader needs to know of the data: folders, counts, coverage.
        decides: conditions that decide every result, as JSON: hashes of the data's contents, and the settings under
            which one number replaces another.
        unread: names of annotation files that are no part of it, or of parts that are absent.
        lost: input that does not count, or that no model can tell apart.
        requested: options that only add results, as JSON: by field of `Settings` the names or numbers it was opened
            with, or `{name: {"from": source, "sha256": hash of the contents}}`.
        reopen: opens the same data with other settings; None where nothing can be added.
        headline: the number that ranks models; None for the usual one of each kind of task.
    """

    name: str
    images: tuple[str, ...]
    texts: tuple[str, ...]
    image_sets: Mapping[str, ImageSet]
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    decides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unread: tuple[str, ...] = ()
    lost: tuple[LostInput, ...] = ()
    requested: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reopen: Callable[[Settings], "Benchmark"] | None = None
    headline: Headline | None = None

    def __post_init__(self):
        notes = dict.fromkeys((*(each.note for each in self.lost), *self.notes))
        object.__setattr__(self, "notes", tuple(notes))

    def fingerprint(self) -> dict[str, Any]:
        """Return the conditions that decide every result, whatever the folders are called and however much is added."""
        return dict(self.decides)

    def summary(self) -> str:
        """One phrase for people: what there is."""
        coverage = self.data.get("coverage", {})
        wanted = coverage.get("wanted", len(self.images))
        tasks = ", ".join(dict.fromkeys(task.name for task in self.tasks))
        phrase = f"{self.name}: {len(self.images)} of {wanted} images, {len(self.texts)} texts; {tasks}"
        return f"{phrase}; not read: {', '.join(self.unread)}" if self.unread else phrase


@dataclasses.dataclass(frozen=True)
class BenchmarkInfo:
    """A benchmark's description, known before its files are there.

    Attributes:
        name: on the command line and in results.
        question: what it asks, one sentence.
        paper: title and arXiv number.
        licence: of its data.
        size: how much there is, in words.
        folders: role (`images`, `annotations`) -> folder in the documented layout.
        files: names of annotation files, or patterns; a folder that holds one is recognised as this benchmark's.
        source: where the files are got.
        tasks: the names of its tasks.
        optional: roles of folders that may be absent.
        reader: of the items, where they are choices (`choices.reader.ChoiceReader`).
        holds: tells the benchmark's files from another's of the same names.
        downloads: what `rococo fetch` gets; empty where files are got by hand, as `source` says.
        open: reads the files: (folders by role, settings) -> benchmark. Raises InputError.
        headline: the number that ranks models, and where that is written down; None for the usual one of its kind.
    """

    name: str
    question: str
    paper: str
    licence: str
    size: str
    folders: Mapping[str, str]
    files: tuple[str, ...]
    source: str
    tasks: tuple[str, ...]
    open: Callable[[Mapping[str, Path], Settings], Benchmark]
    optional: tuple[str, ...] = ()
    reader: Any = None
    holds: Callable[[Path], bool] | None = None
    downloads: tuple[Download, ...] = ()
    headline: Headline | None = None

    def missing(self, folders: Mapping[str, Path]) -> list[str]:
        """Missing paths among those that the benchmark needs."""
        absent = [str(folder) for role, folder in folders.items() if role not in self.optional and not folder.is_dir()]
        annotations = folders.get("annotations")
        needed = annotations is not None and "annotations" not in self.optional
        if needed and annotations.is_dir() and not self.recognises(annotations):
            absent.append(f"{annotations}/{self.files[0]}")
        return absent

    def recognises(self, annotations: Path) -> bool:
        """Whether a folder holds one of the benchmark's annotation files."""
        there = [path for name in self.files for path in found_files(annotations, name)]
        return bool(there) and (self.holds is None or self.holds(there[0]))


def found_files(folder: Path, name: str) -> list[Path]:
    """The file of that name, or those of a pattern such as `data/test-*.parquet`, where they are there."""
    paths = sorted(folder.glob(name)) if "*" in name else [folder / name]
    return [path for path in paths if path.is_file()]


_REGISTRY: dict[str, BenchmarkInfo] = {}


def register(info: BenchmarkInfo) -> BenchmarkInfo:
    """Register a benchmark by its name. Raises ValueError where another benchmark has the name."""
    if _REGISTRY.setdefault(info.name, info) is not info:
        raise ValueError(f"two benchmarks are called {info.name!r}")
    return info


@functools.cache
def _load_benchmarks() -> None:
    """Import the modules of this package, and those that other packages name."""
    for module in MODULES:
        importlib.import_module(f"rococo_jax.benchmarks.{module}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        entry.load()


def known_benchmarks() -> dict[str, BenchmarkInfo]:
    """All registered benchmarks by name; loads their modules on the first call."""
    _load_benchmarks()
    return {name: _REGISTRY[name] for name in NAMES} | _REGISTRY


def find_benchmark(name: str) -> BenchmarkInfo:
    """The benchmark of that name. Raises InputError, which suggests the nearest name, where there is none."""
    known = known_benchmarks()
    if name not in known:
        raise unknown_name("benchmarks", "name", name, known, "rococo benchmarks")
    return known[name]


def recognise(annotations: Path) -> BenchmarkInfo:
    """The benchmark whose annotation files a folder holds; RoCOCO where the folder is not there or holds none.

    The first registered benchmark reports what is missing in its own words.
    """
    known = known_benchmarks()
    return next((info for info in known.values() if info.recognises(annotations)), next(iter(known.values())))


SMALLER_GALLERY = (
    "the gallery is smaller than the benchmark's, so recalls are not comparable with figures on the whole of it"
)


def open_images(
    folder: Path, names: Sequence[str], settings: Settings, effect: str = SMALLER_GALLERY, order: Sequence[str] = ()
) -> tuple[FileImages, tuple[LostInput, ...], dict[str, Any]]:
    """Image files of a benchmark, as `lost_input.take_images`; `names` may repeat.

    Raises InputError where images are missing and that is not allowed, or none is there.
    """
    names = list(dict.fromkeys(names))
    present, missing = find_images(names, folder)
    refuse_missing_images(folder, missing, len(names), settings.allow_missing_images)
    return take_images(str(folder.resolve()), names, present, settings, effect, order)


def with_corrupted_images(benchmark: Benchmark, kinds: Sequence[str], severities: Sequence[int]) -> Benchmark:
    """The benchmark with its unaltered tasks asked again on corrupted images, and on uncorrupted ones of the same cut.

    The mean over all kinds of one severity is reported as `corruptions_SEVERITY` where there are several kinds.
    """
    if not kinds:
        return benchmark
    originals = benchmark.image_sets.get(ORIGINALS)
    if originals is None:
        found = "parts of images" if benchmark.image_sets else "no images"
        raise InputError(benchmark.name, "corruptions", found, "whole images")
    sets = [CorruptedImages(originals, None, 0)]
    sets += [CorruptedImages(originals, kind, severity) for kind in kinds for severity in severities]
    tasks = []
    for images in sets:
        several = images.kind is not None and len(kinds) > 1
        pool = Pool(Variant(corruption=ALL_KINDS, severity=images.severity), "kinds") if several else None
        corrupted = (task.on_images(images.variant, UNCORRUPTED, pool) for task in benchmark.tasks)
        tasks += [task for task in corrupted if task is not None]
    image_sets = {**benchmark.image_sets, **{images.name: images for images in sets}}
    requested = {**benchmark.requested, "corruptions": list(kinds), "severities": list(severities)}
    return dataclasses.replace(benchmark, image_sets=image_sets, tasks=(*benchmark.tasks, *tasks), requested=requested)


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
