"""Open the benchmarks of an evaluation: those under a data folder, all or by name, or one by its two folders."""

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
from rococo_jax.benchmarks.bindings import KnownBindings, known_bindings, with_bindings
from rococo_jax.benchmarks.classes import with_out_images
from rococo_jax.benchmarks.own import own_benchmarks
from rococo_jax.benchmarks.settings import Settings, check_known
from rococo_jax.benchmarks.subset import ONLY, lists_by_benchmark
from rococo_jax.errors import InputError, require_folder
from rococo_jax.evaluation.caption_baselines import read_training_captions
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
    """Open one benchmark by its two folders, or benchmarks under a data folder in the documented layout.

    Args:
        settings: requested tasks, seeds, corruptions, ...
        images, annotations: the folders of one benchmark, which is recognised by its tasks or its annotation files.
        data: the folder that contains `coco/images`, `rococo/annotations`, `sugar_crepe`, ...
        names: names of benchmarks under `data`; by default all whose files are present.
        folders: other locations, by a folder of the layout (`coco/images`) or a benchmark's name (its annotations).

    Raises:
        InputError: neither or both ways of naming folders are used, a name is unknown, a folder is missing, or a
            benchmark's files cannot be used.
    """
    if (data is None) == (images is None) or (images is None) != (annotations is None):
        arguments = {"images": images, "annotations": annotations, "data": data}
        names_given = [name for name, value in arguments.items() if value]
        raise InputError(
            "evaluate", "data", " and ".join(names_given) or "none", "`data`, or `images` and `annotations`"
        )
    available = known_benchmarks() | ({} if data is None else own_benchmarks(Path(data)))
    check_known("tasks", settings.tasks, [task for info in available.values() for task in info.tasks])
    if data is None:
        if names or folders:
            raise InputError("evaluate", "benchmarks", "names with images and annotations", "names with data")
        info = _by_tasks(settings.tasks) or recognise(Path(annotations))
        places = {"images": Path(images), "annotations": Path(annotations)}
        selected = [(info, {role: places.get(role, places["annotations"]) for role in info.folders})]
    else:
        selected = _under(Path(data), names, folders or {}, settings)
    check_known("tasks", settings.tasks, [task for info, _ in selected for task in info.tasks])
    check_known("corrupted_benchmarks", settings.corrupted_benchmarks, [info.name for info, _ in selected])
    settings = in_canonical_order(settings)
    selected = sorted(selected, key=lambda each: canonical_place(each[0].name))
    lists = lists_by_benchmark(settings.only, [info.name for info, _ in selected])
    known = read_bindings(settings)
    benchmarks = [
        open_benchmark(info, places, dataclasses.replace(settings, only=lists[info.name]), known)
        for info, places in selected
    ]
    without_bindings = [benchmark.name for benchmark in benchmarks if "bindings" not in benchmark.requested]
    if known is not None and len(without_bindings) == len(benchmarks):
        wanted = "a benchmark with true and false texts, such as sugarcrepe"
        found = f"{', '.join(without_bindings)}, without an item that has bindings"
        raise InputError("evaluate", "bindings", found, wanted)
    if known is not None and without_bindings:
        names_without = ", ".join(without_bindings)
        say(f"not divided by bindings, as no item has true and false texts with them: {names_without}")
    return benchmarks


def read_bindings(settings: Settings) -> KnownBindings | None:
    """Read the bindings of the requested training captions; None if none are requested.

    Raises InputError: the captions cannot be read, or have no binding.
    """
    if settings.bindings is None:
        return None
    training = read_training_captions(os.fspath(settings.bindings))
    return known_bindings(training.captions, training.about)


def canonical_place(benchmark: str) -> tuple[int, str]:
    """Return the position of a benchmark in results, which does not depend on the order of the request.

    Your own benchmarks come last, by name.
    """
    order = list(known_benchmarks())
    return (order.index(benchmark) if benchmark in order else len(order), benchmark)


def in_canonical_order(settings: Settings) -> Settings:
    """Return the settings with every list of options sorted and without repetitions.

    The results of a request are then the same bytes, regardless of the order of its parts and of whether they were
    requested together or one by one. The first set of templates stays the first.

    Raises InputError: two sets of templates, or two sets of out-of-distribution images, have the same name.
    """
    stems = {}
    for each in settings.templates:
        if stems.setdefault(Path(each).stem, each) != each:
            problem = f"{stems[Path(each).stem]} and {each}, whose results would have the same name"
            raise InputError("settings", "templates", problem, "files with different names")
    out_images = dict(settings.out_images)
    if len(out_images) < len(set(settings.out_images)):
        raise InputError("settings", "out_images", "two folders with the same name", "a different name for each folder")
    first, *further = dict.fromkeys(settings.templates)
    return dataclasses.replace(
        settings,
        mixed_galleries=tuple(sorted(set(settings.mixed_galleries))),
        seeds=tuple(sorted(set(settings.seeds))),
        corruptions=tuple(kind for kind in CORRUPTIONS if kind in settings.corruptions),
        severities=tuple(sorted(set(settings.severities))),
        templates=(first, *sorted(further, key=lambda each: (not each.isdecimal(), len(each), each))),
        out_images=tuple(sorted(out_images.items())),
    )


def open_benchmark(
    info: BenchmarkInfo, folders: Mapping[str, Path], settings: Settings, known: KnownBindings | None = None
) -> Benchmark:
    """Open one benchmark, with corrupted images where the settings request them, and its items divided by bindings.

    Raises InputError: its files cannot be used, or no requested task remains.
    """
    benchmark = with_out_images(info.open(folders, settings), settings.out_images)
    benchmark = with_corrupted_images(benchmark, settings.corruptions_of(info.name), settings.severities)
    benchmark = benchmark if known is None else with_bindings(benchmark, known)
    if not benchmark.tasks and not any(map(settings.wants, info.tasks)):
        problem = f"none of `tasks` ({', '.join(settings.tasks)})"
        raise InputError(info.name, "tasks", problem, f"one of {', '.join(info.tasks)}; or `benchmarks` without it")
    if not benchmark.tasks:
        raise InputError(info.name, "tasks", "none that can be evaluated", f"one of {', '.join(info.tasks)}")
    if settings.only and ONLY not in benchmark.data:
        raise InputError(info.name, "only", settings.only[0], "no list: the reader of this benchmark cannot select")
    only = {ONLY: benchmark.data[ONLY]["sha256"]} if settings.only else {}
    coverage = benchmark.data.get("coverage", {})
    limit = {"limit": coverage["limit"]} if "limit" in coverage else {}
    rerank = {"rerank": settings.rerank} if settings.rerank else {}
    present = {task.name for task in benchmark.tasks}
    tasks = [task for task in info.tasks if settings.wants(task)]
    return dataclasses.replace(
        benchmark,
        conditions={**benchmark.conditions, **only, **limit, **rerank},
        requested={"tasks": [task for task in tasks if task in present] or tasks, **benchmark.requested},
        reopen=functools.partial(_reopen, info, folders, settings.only),
    )


def _reopen(info: BenchmarkInfo, folders: Mapping[str, Path], only: tuple[str, ...], settings: Settings) -> Benchmark:
    settings = dataclasses.replace(in_canonical_order(settings), only=only)
    return open_benchmark(info, folders, settings, read_bindings(settings))


def layout_folders(info: BenchmarkInfo, data: Path, folders: Mapping[str, Folder] | None = None) -> dict[str, Path]:
    """Return a benchmark's folders by role: the places of the documented layout below `data`, or those in `folders`."""
    folders = folders or {}
    places = {role: Path(folders.get(place, data / place)) for role, place in info.folders.items()}
    if info.name in folders:
        places["annotations" if "annotations" in places else next(iter(places))] = Path(folders[info.name])
    return places


def _by_tasks(tasks: Sequence[str]) -> BenchmarkInfo | None:
    """Return the only benchmark that has all these tasks; None if there is no such one or no task is given."""
    fitting = [info for info in known_benchmarks().values() if tasks and set(tasks) <= set(info.tasks)]
    return fitting[0] if len(fitting) == 1 else None


def _under(
    data: Path, names: Sequence[str], folders: Mapping[str, Folder], settings: Settings
) -> list[tuple[BenchmarkInfo, dict[str, Path]]]:
    require_folder(data, "data", "a folder of benchmarks")
    user_benchmarks = own_benchmarks(data)
    available = known_benchmarks() | user_benchmarks
    layout = {place for info in available.values() for place in info.folders.values()}
    check_known("folders", list(folders), [*available, *sorted(layout)], "evaluate")
    if names:
        selected = [find_benchmark(name, user_benchmarks) for name in dict.fromkeys(names)]
    else:
        selected = [info for info in available.values() if not info.missing(layout_folders(info, data, folders))]
        selected = [info for info in selected if any(map(settings.wants, info.tasks))]
        if not selected:
            expected = f"the files of one; `rococo benchmarks --data {data}` lists what is missing"
            raise InputError(data, "benchmarks", "none with all files", expected)
    selected = _without_collisions(selected, bool(names))
    with_folders = [(info, layout_folders(info, data, folders)) for info in selected]
    for info, places in with_folders:
        if missing := info.missing(places):
            fetch = f"`rococo fetch --data {data} {info.name}` downloads it" if info.downloads else info.source
            other_place = f"if it is elsewhere, name its place: `data_dir` {info.name}=DIR"
            raise InputError(missing[0], info.name, "nothing there", f"{info.size}; {fetch}; {other_place}")
    return with_folders


def _without_collisions(benchmarks: Sequence[BenchmarkInfo], are_named: bool) -> list[BenchmarkInfo]:
    """Drop later benchmarks with a task of the same name, with a message; raise InputError if they were named."""
    owner: dict[str, str] = {}
    different = []
    for info in benchmarks:
        other = next((owner[task] for task in info.tasks if task in owner), None)
        if other is None:
            owner |= dict.fromkeys(info.tasks, info.name)
            different.append(info)
        elif are_named:
            raise InputError(
                "benchmarks", info.name, f"tasks with the same names as those of {other}", "only one of the two"
            )
        else:
            say(f"{info.name} skipped: {other} has tasks with the same names; name it in benchmarks to evaluate it")
    return different
