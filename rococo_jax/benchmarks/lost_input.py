"""Input that is left out, or that no model can tell apart: counted, said in one line, and kept in the results."""

import collections
import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.data.image_files import ImageFile
from rococo_jax.data.images import FileImages
from rococo_jax.data.pictures import has_exif_rotation
from rococo_jax.data.tokenizers import TokenRows


@dataclasses.dataclass(frozen=True)
class LostInput:
    """One kind of input that does not count as it stands in the files.

    Attributes:
        kind: `missing_images`, `limit`, `identical_files`, `exif_turn`, `cut_texts` or `same_tokens`.
        count: how many images, texts or altered captions.
        total: of how many.
        note: one sentence for a reader of results.
    """

    kind: str
    count: int
    total: int
    note: str

    @property
    def why_chance(self) -> str | None:
        """Why no model can do better than chance; None where it can."""
        reasons = {"identical_files": "most images are the same files", "cut_texts": "most texts were cut"}
        return reasons.get(self.kind) if 2 * self.count > self.total else None


def in_turns(groups: Sequence[Hashable]) -> list[int]:
    """Places in the order in which a limit takes them: the first of each group, the second of each, ...

    >>> in_turns(["cat", "cat", "dog", "cat", "dog"])
    [0, 2, 1, 4, 3]
    """
    turns: collections.Counter[Hashable] = collections.Counter()
    turn_of = []
    for group in groups:
        turn_of.append(turns[group])
        turns[group] += 1
    return sorted(range(len(groups)), key=turn_of.__getitem__)


def take_images(
    folder: str,
    names: Sequence[str],
    places: Mapping[str, ImageFile],
    settings: Settings,
    effect: str,
    order: Sequence[str],
) -> tuple[FileImages, tuple[LostInput, ...], dict[str, Any]]:
    """Take the images that are there, at most `settings.limit`, in the order of `names`, and say what is lost.

    Args:
        folder: where they are.
        names: all images of the benchmark, each once.
        places: of the images that are there.
        settings: with the limit.
        effect: what the absence of images means for the figures.
        order: in which the limit takes images; that of `names` where it is empty.

    Returns:
        The images, what is lost, and the entries of `Benchmark.data`.
    """
    there = [name for name in names if name in places]
    taken = set([name for name in order or there if name in places][: settings.limit or None])
    opened = tuple(name for name in there if name in taken)
    coverage = {"present": len(there), "wanted": len(names), "complete": len(opened) == len(names)}
    lost = []
    if missing := len(names) - len(there):
        note = f"only {len(there)} of {len(names)} images were present: {effect}"
        lost.append(LostInput("missing_images", missing, len(names), note))
    if left_out := len(there) - len(opened):
        coverage["limit"] = settings.limit
        how = "in turns from each class or part" if order else "the first"
        note = f"limit: {len(opened)} of {len(there)} images were taken, {how}: {effect}"
        lost.append(LostInput("limit", left_out, len(there), note))
    images = FileImages(opened, tuple(places[name] for name in opened))
    data = {"images": folder, "image_count": len(opened), "coverage": coverage}
    return images, (*lost, *identical_files(images), *turned_images(images.paths)), data


def identical_files(images: FileImages) -> list[LostInput]:
    """The images that share their bytes with others: their similarities tie."""
    alike = [count for count in collections.Counter(images.hashes).values() if count > 1]
    if not alike:
        return []
    note = (
        f"{sum(alike)} of {len(images)} images are {len(alike)} files under several names, byte for byte: "
        "no model can tell those of one file apart"
    )
    return [LostInput("identical_files", sum(alike), len(images), note)]


def turned_images(paths: Sequence[ImageFile]) -> list[LostInput]:
    """The images with an EXIF orientation, which is not applied."""
    if not (turned := sum(map(has_exif_rotation, paths))):
        return []
    note = f"{turned:,} of {len(paths):,} images have an EXIF rotation, which is not applied, as in CLIP itself"
    return [LostInput("exif_turn", turned, len(paths), note)]


def without_twins(tasks: Sequence[Task], rows: TokenRows) -> tuple[tuple[Task, ...], list[LostInput]]:
    """Tasks of one benchmark without altered texts that a model cuts to what their originals are, and what is lost.

    `rows` are those of all the benchmark's texts. Classes that are the same tokens stay, and the tasks know of them.
    """
    ids, cut = rows
    if any(task.has_classes for task in tasks):
        first_text: dict[tuple[int, ...], int] = {}
        reading = np.array([first_text.setdefault(tuple(row), place) for place, row in enumerate(ids)])
        tasks = [task.read_as(reading) for task in tasks]
    if not any(cut):
        return tuple(tasks), []
    longest = max(len(row) for row, was_cut in zip(ids, cut, strict=True) if was_cut)
    note = f"{sum(cut)} of {len(cut)} texts are longer than the model's {longest} tokens, and were cut"
    lost = [LostInput("cut_texts", sum(cut), len(cut), note)]
    # Texts that say the same uncut are the benchmark's own affair.
    first = {tuple(row): place for place, row in enumerate(ids) if cut[place]}
    reading = np.array([first.get(tuple(row), place) for place, row in enumerate(ids)])
    kept, parts, left_out, of_all = [], [], 0, 0
    for task in tasks:
        left, count, total = task.without_twins(reading)
        kept += [left] if left is not None else []
        how_many = f"all {total}, and it is not asked" if left is None else f"{count} of {total}"
        parts += [f"{task.name}, {task.variant}: {how_many}"] if count else []
        left_out, of_all = left_out + count, of_all + total
    if parts:
        note = f"altered texts left out, since cut they are their originals ({'; '.join(parts)})"
        lost.append(LostInput("same_tokens", left_out, of_all, note))
    return tuple(kept), lost
