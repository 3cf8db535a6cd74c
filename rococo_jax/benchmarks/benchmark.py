"""Benchmarks, their descriptions, and the registry.

A benchmark is one file in `benchmarks/readers/` that registers a `BenchmarkInfo`. All files of that folder are loaded.
Other packages add benchmarks with entry points of the group `rococo_jax.benchmarks`. The folders of a benchmark are at
fixed places below the data folder, such as `sugar_crepe`, unless the user names other places.
"""

import csv
import dataclasses
import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rococo_jax.benchmarks.excluded_input import ExcludedInput, excluded_by_list, select_images
from rococo_jax.benchmarks.image_sets import CorruptedImages
from rococo_jax.benchmarks.pooling import Headline, HumanResults, Pool
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.subset import phrase_of, read_subset
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.benchmarks.variants import ALL_KINDS, UNCORRUPTED, Variant
from rococo_jax.data.downloads import Download
from rococo_jax.data.image_files import find_images
from rococo_jax.data.images import FileImages, ImageSet
from rococo_jax.errors import InputError, unknown_name

SOURCES = Path(__file__).parent / "assets" / "sources.csv"
READERS = "rococo_jax.benchmarks.readers"
ENTRY_POINTS = "rococo_jax.benchmarks"
# The order of benchmarks in tables; others follow in the order in which they are loaded.
ORDER = (
    *("rococo", "sugarcrepe", "sugarcrepe_pp", "hard_positives", "valse", "aro", "crepe", "winoground"),
    *("colorswap", "bivlc", "eqben", "cola", "mmvp", "svo_probes", "negbench", "whatsup", "negbench_retrieval"),
    *("half_truths", "scam", "vismin", "spec", "imagecode", "choices", "cifar10", "cue_conflict", "classes"),
)
READY, PARTLY, MISSING = "ready", "partly", "missing"


@functools.cache
def read_sources() -> tuple[tuple[Download, frozenset[str], str], ...]:
    """Read the rows: the download, the benchmarks that need it, and the source of its address."""
    with SOURCES.open(encoding="utf-8", newline="") as file:
        rows = [{column: value for column, value in row.items() if value} for row in csv.DictReader(file)]
    needed_by = [(frozenset(row.pop("benchmarks").split()), row.pop("source")) for row in rows]
    downloads = [Download(**{**row, "size": int(row.get("size", 0))}) for row in rows]
    return tuple((download, *about) for download, about in zip(downloads, needed_by, strict=True))


def downloads_of(benchmark: str) -> tuple[Download, ...]:
    """Return the downloads of a benchmark, annotations first; empty if its files must be downloaded by hand."""
    return tuple(download for download, benchmarks, _ in read_sources() if benchmark in benchmarks)


@dataclasses.dataclass(frozen=True, eq=False)
class Benchmark:
    """Images and texts, each embedded once, and the tasks over them.

    Attributes:
        name: name in the registry.
        images: names of the original images, as in the annotations.
        texts: strings to embed.
        image_sets: image sets by name, `originals` first. Original, mixed and corrupted sets have one image for each of
            `images`; `crops` has one for each part of an image, `out_NAME` the out-of-distribution images of a folder.
        tasks: all tasks; a baseline comes before the variants that are compared with it.
        notes: sentences for readers of the results; the notes of `excluded` are added.
        data: folders, counts and coverage, for the results.
        conditions: all that determines a result, as JSON: hashes of the data, and settings that change numbers.
        ignored_files: annotation files that are no part of the benchmark, and parts without a file.
        excluded: input that is left out or that no model can distinguish.
        requested: settings that only add results, as JSON: the requested names or numbers, or
            `{name: {"from": source, "sha256": hash of the contents}}`, by field of `Settings`.
        reopen: opens the same data with other settings; None if nothing can be added.
        headline: the number that ranks models; None for the default of each kind of task.
    """

    name: str
    images: tuple[str, ...]
    texts: tuple[str, ...]
    image_sets: Mapping[str, ImageSet]
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    conditions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignored_files: tuple[str, ...] = ()
    excluded: tuple[ExcludedInput, ...] = ()
    requested: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reopen: Callable[[Settings], "Benchmark"] | None = None
    headline: Headline | None = None

    def __post_init__(self):
        notes = dict.fromkeys((*(each.note for each in self.excluded), *self.notes))
        object.__setattr__(self, "notes", tuple(notes))

    @property
    def input_count(self) -> int:
        """Number of images of all sets and of texts: the work of an evaluation, roughly."""
        return len(self.texts) + sum(map(len, self.image_sets.values()))

    def fingerprint(self) -> dict[str, Any]:
        """Return the conditions that determine every result; they contain no names of folders."""
        return dict(self.conditions)

    def summary(self) -> str:
        """Return a phrase for messages: the numbers of images and texts, the tasks, and files that are not read."""
        total = self.data.get("coverage", {}).get("wanted", len(self.images))
        images = f"{len(self.images):,}" if len(self.images) == total else f"{len(self.images):,} of {total:,}"
        altered = sum(len(images) for images in self.image_sets.values()) - len(self.images)
        tasks = ", ".join(dict.fromkeys(task.name for task in self.tasks))
        and_altered = f" and {altered:,} mixed, corrupted or control copies" if altered > 0 else ""
        phrase = f"{self.name}: {images} images{and_altered}, {len(set(self.texts)):,} different texts; tasks: {tasks}"
        phrase += f"; {listed}" if (listed := phrase_of(self.data)) else ""
        return f"{phrase}; not read: {', '.join(self.ignored_files)}" if self.ignored_files else phrase


@dataclasses.dataclass(frozen=True)
class BenchmarkInfo:
    """Description of a benchmark, available without its files.

    Attributes:
        name: name on the command line and in results.
        question: the question that it asks, one sentence.
        paper: title and arXiv number.
        licence: licence of its data.
        size: number of items and images, in words.
        folders: place of each folder below the data folder, by role (`images`, `annotations`).
        files: names of annotation files, or patterns; a folder with one of them is recognised as this benchmark's.
        source: where its files are published.
        tasks: names of its tasks.
        open: reads the files: (folders by role, settings) -> benchmark. Raises InputError.
        optional: roles of folders that may be absent.
        reader: reader of its items (`choices.reader.ChoiceReader`), if they are choices.
        image_names: reads the names of its images from the folder of annotations; None if no annotations name them.
        holds: distinguishes its files from another benchmark's files of the same names.
        downloads: files that `rococo fetch` downloads; empty if they must be downloaded by hand from `source`.
        headline: the number that ranks models and its source; None for the default of each kind of task.
        humans: published results of people.
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
    image_names: Callable[[Path], Iterable[str]] | None = None
    holds: Callable[[Path], bool] | None = None
    downloads: tuple[Download, ...] = ()
    headline: Headline | None = None
    humans: tuple[HumanResults, ...] = ()

    def missing(self, folders: Mapping[str, Path]) -> list[str]:
        """Return the required paths that do not exist."""
        absent = [str(folder) for role, folder in folders.items() if role not in self.optional and not folder.is_dir()]
        annotations = folders.get("annotations")
        are_required = annotations is not None and "annotations" not in self.optional
        if are_required and annotations.is_dir() and not self.recognises(annotations):
            absent.append(f"{annotations}/{self.files[0]}")
        return absent

    def recognises(self, annotations: Path) -> bool:
        """Return whether a folder contains one of the benchmark's annotation files."""
        files = [path for name in self.files for path in existing_files(annotations, name)]
        return bool(files) and (self.holds is None or self.holds(files[0]))


def existing_files(folder: Path, name: str) -> list[Path]:
    """Return the existing files of a name, or of a pattern such as `data/test-*.parquet`."""
    paths = sorted(folder.glob(name)) if "*" in name else [folder / name]
    return [path for path in paths if path.is_file()]


_REGISTRY: dict[str, BenchmarkInfo] = {}


def register(info: BenchmarkInfo) -> BenchmarkInfo:
    """Register a benchmark under its name. Raises ValueError if another benchmark has the name."""
    if _REGISTRY.setdefault(info.name, info) is not info:
        raise ValueError(f"two benchmarks are called {info.name!r}")
    return info


@functools.cache
def _load_benchmarks() -> None:
    """Import all readers of this package, and the modules that other packages name as entry points."""
    for module in pkgutil.iter_modules(importlib.import_module(READERS).__path__):
        importlib.import_module(f"{READERS}.{module.name}")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        entry.load()


def known_benchmarks() -> dict[str, BenchmarkInfo]:
    """Return all registered benchmarks by name. Their modules are loaded by the first call."""
    _load_benchmarks()
    return {name: _REGISTRY[name] for name in ORDER} | _REGISTRY


def find_benchmark(name: str, user_benchmarks: Mapping[str, BenchmarkInfo] = MappingProxyType({})) -> BenchmarkInfo:
    """Return the benchmark of a name, one of the user's own or a registered one.

    Raises InputError, which suggests the nearest name, for an unknown name.
    """
    benchmarks = known_benchmarks() | user_benchmarks
    if name not in benchmarks:
        raise unknown_name("benchmarks", "name", name, benchmarks, "rococo benchmarks --data DIR")
    return benchmarks[name]


def human_results(results: Mapping[str, Any]) -> dict[str, HumanResults]:
    """Return the published results of people, by task, on the benchmarks in the contents of a `results.json`."""
    known = known_benchmarks()
    names = [name for name in results.get("benchmarks", results["tasks"]) if name in known]
    humans = [(each.task or name, each) for name in names for each in known[name].humans]
    return {task: each for task, each in humans if task in results["tasks"]}


def recognise(annotations: Path) -> BenchmarkInfo:
    """Return the benchmark whose annotation files a folder contains, or RoCOCO if it contains none.

    RoCOCO's own error then names the missing files.
    """
    benchmarks = list(known_benchmarks().values())
    return next((info for info in benchmarks if info.recognises(annotations)), benchmarks[0])


SMALLER_GALLERY = "the gallery is smaller than the published one, so recall cannot be compared with published numbers"


def open_images(
    folder: Path, names: Sequence[str], settings: Settings, effect: str = SMALLER_GALLERY, order: Sequence[str] = ()
) -> tuple[FileImages, tuple[ExcludedInput, ...], dict[str, Any]]:
    """Open the image files of a benchmark, as `excluded_input.select_images`; `names` may contain repetitions.

    With `settings.only`, images that are not listed are no part of the benchmark.

    Raises InputError: images are missing and that is not allowed, no image exists, or the list has an unknown image.
    """
    names = list(dict.fromkeys(names))
    listed, about_list = (), {}
    if settings.only:
        subset = read_subset(settings.only[0])
        subset.refuse_unknown(set(names), f"names of its images, such as {names[0]!r}")
        about_list = subset.describe(len(subset.keys), len(names), "images")
        listed = (excluded_by_list(about_list, effect),)
        names = [name for name in names if name in subset]
    present, missing = find_images(names, folder)
    if missing and not settings.allow_missing_images:
        counts = f"{len(present):,} of {len(names):,}, without {missing[0]!r}"
        subset = "add `allow_missing_images` to use these; numbers are then not comparable with published ones"
        raise InputError(folder, "images", counts, f"all of them (`rococo fetch` downloads them); or {subset}")
    if not present:
        raise InputError(folder, "images", f"none of {len(names):,}, such as {missing[0]!r}", "at least one")
    images, excluded, data = select_images(str(folder.resolve()), names, present, settings, effect, order)
    return images, (*listed, *excluded), {**data, **about_list}


def with_corrupted_images(benchmark: Benchmark, kinds: Sequence[str], severities: Sequence[int]) -> Benchmark:
    """Return the benchmark with copies of its unaltered tasks on corrupted images.

    Their baseline are uncorrupted images, cropped in the same way. With several kinds, their mean at one severity is
    reported as `corruptions_SEVERITY`. Raises InputError: the benchmark has no whole images.
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
        is_pooled = images.kind is not None and len(kinds) > 1
        pool = Pool(Variant(corruption=ALL_KINDS, severity=images.severity), "kinds") if is_pooled else None
        corrupted = (task.on_images(images.variant, UNCORRUPTED, pool) for task in benchmark.tasks)
        tasks += [task for task in corrupted if task is not None]
    image_sets = {**benchmark.image_sets, **{images.name: images for images in sets}}
    requested = {**benchmark.requested, "corruptions": list(kinds), "severities": list(severities)}
    return dataclasses.replace(benchmark, image_sets=image_sets, tasks=(*benchmark.tasks, *tasks), requested=requested)


def availability(info: BenchmarkInfo, folders: Mapping[str, Path]) -> tuple[str, str]:
    """Return `ready`, `partly`, or `missing` if nothing can be evaluated, and a phrase on images and missing files.

    Raises InputError: an annotation file cannot be read.
    """
    if missing_paths := info.missing(folders):
        return MISSING, f"not found: {', '.join(dict.fromkeys(missing_paths))}"
    annotations = folders.get("annotations")
    if annotations is None or info.image_names is None or not annotations.is_dir():
        return READY, ""
    # Patterns name the same items in another form, so only complete names count as parts.
    missing_files = [name for name in info.files if "*" not in name and not existing_files(annotations, name)]
    if any("*" in name and existing_files(annotations, name) for name in info.files):
        missing_files = []
    names = list(dict.fromkeys(info.image_names(annotations)))
    present = sum(".parquet/" in name for name in names)
    if folders["images"].is_dir():
        present += len(find_images([name for name in names if ".parquet/" not in name], folders["images"])[0])
    works_without_images = "images" in info.optional
    texts_only = ": only texts are compared" * (works_without_images and not present)
    details = f"{present:,} of {len(names):,} images{texts_only}"
    details += f"; without {', '.join(missing_files)}" if missing_files else ""
    if names and not present and not works_without_images:
        return MISSING, details
    return READY if present == len(names) and not missing_files else PARTLY, details
