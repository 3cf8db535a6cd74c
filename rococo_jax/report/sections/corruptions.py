"""Section on corrupted images: means over the kinds first, then a heat map of kinds by severities for each model.

Drops are measured against `uncorrupted`, the same images cropped to the same squares without corruption. A benchmark
with parts has a map for each part, with variants `PART/fog_3`.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

from rococo_jax.benchmarks.variants import ALL_KINDS, UNCORRUPTED, Variant
from rococo_jax.metrics import metric_of
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.report.blocks import Block, Cell, Folded, Head, HeatMap, Note, Part, Scale, Tiles, estimate_cell
from rococo_jax.report.collection import Estimate, Run, corrupted_by, pooled_severities, tasks_of
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.tables import Column, Measured, has_any, heads_of, measured_cell, metric_columns, pivot, tile
from rococo_jax.report.vocabulary import percent, task_label, variant_label

SHADES = 10
_QUESTION = (
    "The same tasks, with every image corrupted by the noise, blur, weather and digital corruptions of ImageNet-C, "
    "computed as in its authors' code for squares of 224 pixels. Frost is drawn instead of photographed, so its "
    "numbers are not comparable with published ones."
)
_MEANS = (
    "Mean over the kinds of each severity, and the relative drop from the result on uncorrupted images, each with its "
    "95 % bootstrap interval. The drop rate is a definition of this project."
)
_MAP = (
    "Relative drop by kind and severity, in per cent of the result on uncorrupted images (the same images, cropped to "
    "the same squares of 224 pixels). All maps of this section share one scale; a minus sign is a gain."
)
# A task and one of its parts; "" for a task without parts.
_Track = tuple[str, str]


def corrupted_part(runs: Sequence[Run], anchor: str) -> Part | None:
    """Return the section on corruptions; None where no run measured any."""
    kinds, severities = corrupted_by(runs)
    if not kinds:
        return None
    tasks = [task for task in tasks_of(runs) if any(run.corruptions(task) for run in runs)]
    tracks = sorted(
        {(task, each.part) for run in runs for task in tasks for each in run.corruptions(task)},
        key=lambda track: (tasks.index(track[0]), track[1]),
    )
    ranked = ordered(runs, tasks[0])
    ranked += [run for run in runs if run not in ranked]
    ranked = [run for run in ranked if any(run.corruptions(task) for task in tasks)]
    blocks: list[Block | None] = [
        Note(_QUESTION, "question"),
        _tiles(ranked, tasks),
        _means(ranked, tracks),
        change_part(ranked, tasks),
        Part("By kind and severity", [Note(_MAP), *_maps(ranked, tracks, kinds, severities)]),
    ]
    return Part("Corrupted images", blocks, "task", anchor)


def _lead(runs: Sequence[Run], task: str) -> str:
    """Return the metric on which drops of a task are measured."""
    return section_of(runs, task).lead[1]


def _name(kind: str, severity: int = 0, part: str = "") -> str:
    return Variant(part, corruption=kind, severity=severity).name


def _tiles(runs: Sequence[Run], tasks: Sequence[str]) -> Tiles | None:
    """Return the mean drop of each task at the lowest and the highest severity."""
    severities, tiles = pooled_severities(runs), []
    for task in tasks:
        for severity in dict.fromkeys(severities[:1] + severities[-1:]):
            name = _name(ALL_KINDS, severity)
            estimates = [run.estimate(task, name, "drop") for run in runs]
            drops = [None if each.value is None else (name, each) for each in estimates]
            tiles.append(
                tile(f"Mean drop, {task_label(task).lower()}, severity {severity}", runs, task, drops, ours=True)
            )
    return Tiles.of(tiles)


def _means(runs: Sequence[Run], tracks: Sequence[_Track]) -> Part | None:
    """Return a row for each model and task or part: the uncorrupted result, then result and drop of each severity."""
    severities = pooled_severities(runs)
    if not severities:
        return None
    tracks = [
        (task, part) for task, part in tracks if has_any(runs, task, [_name(UNCORRUPTED, part=part)], _lead(runs, task))
    ]
    leads = {_lead(runs, task) for task, _ in tracks}
    label = metric_of(*leads).label if len(leads) == 1 else "Result"
    columns = [Column((UNCORRUPTED, 0, ""), Head(label), (variant_label(UNCORRUPTED), ""))]
    for severity in severities:
        group = variant_label(_name(ALL_KINDS, severity)), ""
        columns.append(Column((ALL_KINDS, severity, ""), Head(label), group))
        columns.append(Column((ALL_KINDS, severity, "drop"), Head("Drop"), group))
    rows = [
        ([Cell(run.label), Cell(_track_label(*track), words=True)], (run, *track))
        for track in tracks
        for run in runs
        if _of_track(run, track)
    ]

    def cell(row: tuple[Run, str, str], column: tuple[str, int, str]) -> Cell:
        (run, task, part), (kind, severity, name) = row, column
        return estimate_cell(run.estimate(task, _name(kind, severity, part), name or _lead(runs, task)))

    table = pivot("Means over corruptions", heads_of(["Model", "Task"]), rows, columns, cell, filterable=False)
    return Part("Means over kinds", [Note(_MEANS), table])


def _maps(
    runs: Sequence[Run], tracks: Sequence[_Track], kinds: Sequence[str], severities: Sequence[int]
) -> list[Block]:
    drops = [
        run.estimate(task, _name(kind, severity, part), "drop").value
        for run in runs
        for task, part in tracks
        for kind in kinds
        for severity in severities
    ]
    top = top_of_scale(drops)
    # Not every benchmark is measured on every corruption.
    of_tracks = {track: {each.corruption for run in runs for each in _of_track(run, track)} for track in tracks}
    maps = [
        [
            _map(run, track, [kind for kind in kinds if kind in of_tracks[track]], severities, top)
            for track in tracks
            if _of_track(run, track)
        ]
        for run in runs
    ]
    scale = Scale("no drop", f"{top:.0f} %")
    if len(runs) == 1:
        return [scale, Part("", maps[0], style="maps")]
    folded = [
        Folded(run.label, [Part("", of_run, style="maps")], open=place == 0)
        for place, (run, of_run) in enumerate(zip(runs, maps, strict=True))
    ]
    return [scale, *folded]


def _track_label(task: str, part: str) -> str:
    return task_label(task) + (f", {variant_label(part).lower()}" if part else "")


def _of_track(run: Run, track: _Track) -> list[Variant]:
    task, part = track
    return [each for each in run.corruptions(task) if each.part == part]


def _map(run: Run, track: _Track, kinds: Sequence[str], severities: Sequence[int], top: float) -> Part:
    task, part = track
    by_group = {group: [] for group in dict.fromkeys(kind.group for kind in CORRUPTIONS.values())}
    for kind in kinds:
        by_group[CORRUPTIONS[kind].group].append(kind)

    def cells_of(kind: str) -> list[Cell]:
        return [_cell(run, task, _name(kind, severity, part), top) for severity in severities]

    rows = [
        (group.capitalize(), variant_label(kind), cells_of(kind))
        for group, members in by_group.items()
        for kind in members
    ]
    means = cells_of(ALL_KINDS)
    if any(cell.text != percent(None) for cell in means):
        rows.insert(0, ("", f"Mean of {len(kinds)} kinds", means))
    name = _lead([run], task)
    uncorrupted = run.estimate(task, _name(UNCORRUPTED, part=part), name)
    baseline = f"Uncorrupted {metric_of(name).label} {percent(uncorrupted.value)} %"
    label = _track_label(task, part)
    heads = ["Severity", *map(str, severities)]
    return Part(label, [Note(baseline), HeatMap(f"{run.label}, {label}", heads, rows)], "")


def _cell(run: Run, task: str, variant: str, top: float) -> Cell:
    name = _lead([run], task)
    drop: Estimate = run.estimate(task, variant, "drop")
    title = f"{variant_label(variant)}: drop {percent(drop.value)} %"
    title += f" (95 % interval {drop.bounds} %)" if drop.bounds else ""
    title += f", {metric_of(name).label} {percent(run.estimate(task, variant, name).value)} %"
    return Cell(percent(drop.value), title=title, shade=None if drop.value is None else shade(drop.value, top))


def top_of_scale(values: Sequence[float | int | None]) -> float:
    """Return the percentage of the last shade: the largest value, rounded up to a multiple of ten.

    >>> top_of_scale([12.0, 53.1, None]), top_of_scale([])
    (60.0, 10.0)
    """
    return 10.0 * max(1, math.ceil(max((value for value in values if value is not None), default=0) / 10))


def shade(value: float | int, top: float) -> int:
    """Return the index of a value's shade; all values below zero have the first shade.

    >>> [shade(value, 50.0) for value in (-3, 0, 4.9, 5, 49, 50)]
    [0, 0, 0, 1, 9, 9]
    """
    return min(SHADES - 1, max(0, int(SHADES * value / top)))


CHANGES = (
    *("ras", "ras_destructive", "ras_corrective", "consistency", "right_to_wrong", "wrong_to_right"),
    *("erroneous_confidence", "hesitation"),
)
_RAS = (
    "Compared with the same images without corruption. RAS is 0 where nothing changes and negative where probabilities "
    "move away from the correct class; it is the sum of its parts. Erroneous confidence: wrong after corruption, with "
    "lower entropy. Hesitation: right before and after, with higher entropy. Means over kinds where there are several. "
    "The formula of RAS is a definition of this project."
)


def _worse_despite_gain(rows: Iterable[Measured]) -> Note | None:
    """Return a note on rows in which corruption raises the result while RAS is negative (arXiv 2511.19032)."""
    names = []
    for run, task, name in rows:
        drop, ras = (run.estimate(task, name, metric).value for metric in ("drop", CHANGES[0]))
        if drop is not None and drop < 0 and ras is not None and ras < 0:
            names.append(f"{run.label}, {task_label(task).lower()}, {variant_label(name).lower()}")
    if not names:
        return None
    text = "More answers are right than without corruption although RAS is negative; accuracy alone hides the change"
    return Note(f"{text}: {'; '.join(names)}.", "verdict")


def change_part(runs: Sequence[Run], tasks: Sequence[str]) -> Part | None:
    """Return RAS and its parts, a row for each model, task and condition; None where none was measured."""
    rows = []
    for task, run in itertools.product(tasks, runs):
        measured = [each for each in run.corruptions(task) if not each.unseen]
        means = [each for each in measured if each.corruption == ALL_KINDS]
        for name in (each.name for each in means or measured):
            if run.estimate(task, name, CHANGES[0]).value is not None:
                words = Cell(task_label(task), words=True), Cell(variant_label(name), words=True, title=name)
                rows.append(([Cell(run.label), *words], Measured(run, task, name)))
    if not rows:
        return None
    words = heads_of(["Model", "Task", "Images"])
    table = pivot("RAS and its parts", words, rows, metric_columns(CHANGES), measured_cell)
    return Part(
        "Change of confidence under corruption",
        [Note(_RAS), _worse_despite_gain(measured for _, measured in rows), table],
    )
