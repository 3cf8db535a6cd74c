"""Open the benchmarks of an evaluation: all under one data folder, some of them by name, or one by its two folders."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rococo_jax.benchmarks.benchmark import (
    Benchmark,
    BenchmarkInfo,
    find_benchmark,
    known_benchmarks,
    recognise,
    with_corrupted_images,
)
from rococo_jax.benchmarks.classes import with_out_images
from rococo_jax.benchmarks.own import own_benchmarks
from rococo_jax.benchmarks.settings import Settings, check_known
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.progress import say

Folder = str | os.PathLike


def open_benchmarks(
    settings: Settings,
    *,
    images: Folder | None = None,
    annotations: Folder | None = None,
    data: Folder | None = None,
    names: Sequence[str] = (),
    folders: Mapping[str, Folder] | None = None,
) -> list[Benchmark]:
    """Opens one benchmark by its two folders, or benchmarks under a data folder in the documented layout.

    Args:
        settings: what is asked of them.
        images, annotations: the folders of one benchmark, which is recognised by its tasks or its annotation files.
        data: the folder that holds `coco/images`, `rococo/annotations`, `sugar_crepe`, ...
        names: of the benchmarks under `data`; by default all whose files are there.
        folders: other places, by a folder of the layout (`coco/images`) or a benchmark's name (its annotations).

    Raises:
        InputError: neither or both ways of naming folders are used, a name is unknown, a folder is missing, or a
            benchmark's files cannot be used.
    """
    if (data is None) == (images is None) or (images is None) != (annotations is None):
        given = [name for name, value in (("images", images), ("annotations", annotations), ("data", data)) if value]
        raise InputError("evaluate", "data", " and ".join(given) or "none", "`data`, or `images` and `annotations`")
    known = known_benchmarks() | ({} if data is None else own_benchmarks(Path(data)))
    check_known("tasks", settings.tasks, [task for info in known.values() for task in info.tasks])
    if data is None:
        if names or folders:
            raise InputError("evaluate", "benchmarks", "names with images and annotations", "names with data")
        info = _by_tasks(settings.tasks) or recognise(Path(annotations))
        places = {"images": Path(images), "annotations": Path(annotations)}
        chosen = [(info, {role: places.get(role, places["annotations"]) for role in info.folders})]
    else:
        chosen = _under(Path(data), names, folders or {}, settings)
    known = [task for info, _ in chosen for task in info.tasks]
    check_known("tasks", settings.tasks, known)
    check_known("corrupted_benchmarks", settings.corrupted_benchmarks, [info.name for info, _ in chosen])
    settings, chosen = in_canonical_order(settings), sorted(chosen, key=lambda each: canonical_place(each[0].name))
    return [open_benchmark(info, places, settings) for info, places in chosen]


def canonical_place(benchmark: str) -> tuple[int, str]:
    """Return the place of a benchmark in results, whatever the order it is named in: your own come last, by name."""
    known = list(known_benchmarks())
    return (known.index(benchmark) if benchmark in known else len(known), benchmark)


def in_canonical_order(settings: Settings) -> Settings:
    """Return the settings with every list of options sorted and without repetitions.

    Results of one request are then the same bytes, in whatever order its parts are named, at once or one by one. The
    first set of templates stays the first.

    Raises InputError: two sets of templates, or two sets of out-of-distribution images, have one name.
    """
    stems = {}
    for each in settings.templates:
        if stems.setdefault(Path(each).stem, each) != each:
            found = f"{stems[Path(each).stem]} and {each}, whose results would have one name"
            raise InputError("settings", "templates", found, "files of different names")
    out_images = dict(settings.out_images)
    if len(out_images) < len(set(settings.out_images)):
        raise InputError("settings", "out_images", "two folders of one name", "a name for each folder")
    first, *others = dict.fromkeys(settings.templates)
    return dataclasses.replace(
        settings,
        mixed_galleries=tuple(sorted(set(settings.mixed_galleries))),
        seeds=tuple(sorted(set(settings.seeds))),
        corruptions=tuple(kind for kind in CORRUPTIONS if kind in settings.corruptions),
        severities=tuple(sorted(set(settings.severities))),
        templates=(first, *sorted(others, key=lambda each: (not each.isdecimal(), len(each), each))),
        out_images=tuple(sorted(out_images.items())),
    )


def open_benchmark(info: BenchmarkInfo, folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    """Open one benchmark, with corrupted images where the settings request them.

    Raises InputError: its files cannot be used, or no task is left.
    """
    benchmark = with_out_images(info.open(folders, settings), settings.out_images)
    benchmark = with_corrupted_images(benchmark, settings.corruptions_of(info.name), settings.severities)
    if not benchmark.tasks:
        raise InputError(info.name, "tasks", "none that can be asked", f"one of {', '.join(info.tasks)}")
    coverage = benchmark.data.get("coverage", {})
    limit = {"limit": coverage["limit"]} if "limit" in coverage else {}
    rerank = {"rerank": settings.rerank} if settings.rerank else {}
    present = {task.name for task in benchmark.tasks}
    tasks = [task for task in info.tasks if settings.wants(task)]
    return dataclasses.replace(
        benchmark,
        conditions={**benchmark.conditions, **limit, **rerank},
        requested={"tasks": [task for task in tasks if task in present] or tasks, **benchmark.requested},
        reopen=functools.partial(_reopen, info, folders),
    )


def _reopen(info: BenchmarkInfo, folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    return open_benchmark(info, folders, in_canonical_order(settings))


def layout_folders(info: BenchmarkInfo, data: Path, folders: Mapping[str, Folder] | None = None) -> dict[str, Path]:
    """Return a benchmark's folders by role: the places of the documented layout below `data`, or those in `folders`."""
    folders = folders or {}
    places = {role: Path(folders.get(place, data / place)) for role, place in info.folders.items()}
    if info.name in folders:
        places["annotations" if "annotations" in places else next(iter(places))] = Path(folders[info.name])
    return places


def _by_tasks(tasks: Sequence[str]) -> BenchmarkInfo | None:
    """The one benchmark that has all these tasks; None where none are named."""
    fitting = [info for info in known_benchmarks().values() if tasks and set(tasks) <= set(info.tasks)]
    return fitting[0] if len(fitting) == 1 else None


def _under(
    data: Path, names: Sequence[str], folders: Mapping[str, Folder], settings: Settings
) -> list[tuple[BenchmarkInfo, dict[str, Path]]]:
    if not data.is_dir():
        raise InputError(data, "data", "a file" if data.exists() else "nothing there", "a folder of benchmarks")
    own = own_benchmarks(data)
    known = known_benchmarks() | own
    layout = {place for info in known.values() for place in info.folders.values()}
    check_known("folders", list(folders), [*known, *sorted(layout)], "evaluate")
    if names:
        chosen = [own.get(name) or find_benchmark(name) for name in dict.fromkeys(names)]
    else:
        chosen = [info for info in known.values() if not info.missing(layout_folders(info, data, folders))]
        chosen = [info for info in chosen if any(map(settings.wants, info.tasks))]
        if not chosen:
            wanted = f"the files of one; `rococo benchmarks --data {data}` lists what is missing"
            raise InputError(data, "benchmarks", "none with all files", wanted)
    chosen = _without_collisions(chosen, bool(names))
    placed = [(info, layout_folders(info, data, folders)) for info in chosen]
    for info, places in placed:
        if missing := info.missing(places):
            fetch = f"`rococo fetch --data {data} {info.name}` downloads it" if info.downloads else info.source
            other_place = f"if it is elsewhere, name its place: `data_dir` {info.name}=DIR"
            raise InputError(missing[0], info.name, "nothing there", f"{info.size}; {fetch}; {other_place}")
    return placed


def _without_collisions(chosen: Sequence[BenchmarkInfo], are_named: bool) -> list[BenchmarkInfo]:
    """The benchmarks without later ones that have a task of the same name; these are said, or refused where named."""
    owner: dict[str, str] = {}
    different = []
    for info in chosen:
        other = next((owner[task] for task in info.tasks if task in owner), None)
        if other is None:
            owner |= dict.fromkeys(info.tasks, info.name)
            different.append(info)
        elif are_named:
            raise InputError("benchmarks", info.name, f"tasks of the same names as {other}", "one of them at a time")
        else:
            say(f"{info.name} left out: {other} has tasks of the same names; name it in benchmarks to evaluate it")
    return different
