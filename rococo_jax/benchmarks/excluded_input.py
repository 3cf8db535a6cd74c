"""Input that is excluded from a benchmark, or that no model can distinguish: counted, and noted in the results."""

import collections
import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.subset import ONLY, phrase_of
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.data.image_files import ImageFile
from rococo_jax.data.images import FileImages
from rococo_jax.data.pictures import has_exif_rotation
from rococo_jax.data.tokenizers import TokenRows


@dataclasses.dataclass(frozen=True)
class ExcludedInput:
    """Input of one kind that is excluded or that no model can distinguish.

    Attributes:
        kind: `not_listed`, `missing_images`, `limit`, `identical_files`, `exif_turn`, `cut_texts` or `same_tokens`.
        count: number of affected images, texts or altered captions.
        total: number of all of them.
        note: a sentence for readers of the results.
    """

    kind: str
    count: int
    total: int
    note: str

    @property
    def chance_reason(self) -> str | None:
        """The reason why no model can be better than chance; None if one could be."""
        reasons = {"identical_files": "most images are the same files", "cut_texts": "most texts were truncated"}
        return reasons.get(self.kind) if 2 * self.count > self.total else None


def excluded_by_list(about_list: Mapping[str, Any], effect: str) -> ExcludedInput:
    """Return what a list leaves out (`subset.Subset.describe`); `effect` is its consequence for the results."""
    only = about_list[ONLY]
    return ExcludedInput("not_listed", only["of"] - only["selected"], only["of"], f"{phrase_of(about_list)}: {effect}")


def in_turns(groups: Sequence[Hashable]) -> list[int]:
    """Return the order in which a limit selects items: the first of each group, then the second of each, and so on.

    >>> in_turns(["cat", "cat", "dog", "cat", "dog"])
    [0, 2, 1, 4, 3]
    """
    sizes: collections.Counter[Hashable] = collections.Counter()
    turn_of = []
    for group in groups:
        turn_of.append(sizes[group])
        sizes[group] += 1
    return sorted(range(len(groups)), key=turn_of.__getitem__)


def select_images(
    folder: str,
    names: Sequence[str],
    files: Mapping[str, ImageFile],
    settings: Settings,
    effect: str,
    order: Sequence[str],
) -> tuple[FileImages, tuple[ExcludedInput, ...], dict[str, Any]]:
    """Select the existing images, at most `settings.limit`, in the order of `names`.

    Args:
        folder: the folder of images.
        names: names of all images of the benchmark, without repetitions.
        files: file of each existing image.
        settings: settings with the limit.
        effect: consequence of excluded images for the results, a phrase for notes.
        order: order in which the limit selects images; the order of `names` if it is empty.

    Returns:
        The images, the excluded input, and the entries of `Benchmark.data`.
    """
    present = [name for name in names if name in files]
    candidates = [name for name in order or present if name in files]
    within_limit = set(candidates[: settings.limit or None])
    selected = tuple(name for name in present if name in within_limit)
    coverage = {"present": len(present), "wanted": len(names), "complete": len(selected) == len(names)}
    excluded = []
    if missing := len(names) - len(present):
        note = f"only {len(present):,} of {len(names):,} images were present: {effect}"
        excluded.append(ExcludedInput("missing_images", missing, len(names), note))
    if beyond_limit := len(present) - len(selected):
        coverage["limit"] = settings.limit
        selection = "in turns from each class or part" if order else "the first"
        note = f"limit: {len(selected)} of {len(present)} images were selected, {selection}: {effect}"
        excluded.append(ExcludedInput("limit", beyond_limit, len(present), note))
    images = FileImages(selected, tuple(files[name] for name in selected))
    data = {"images": folder, "image_count": len(selected), "coverage": coverage}
    return images, (*excluded, *identical_files(images), *exif_rotated_images(images.paths)), data


def identical_files(images: FileImages) -> list[ExcludedInput]:
    """Return the images whose files have the same bytes as others: their similarities tie."""
    repeated = [count for count in collections.Counter(images.hashes).values() if count > 1]
    if not repeated:
        return []
    note = (
        f"{sum(repeated)} of {len(images)} images are {len(repeated)} files under several names, byte for byte: "
        "no model can distinguish images of the same file"
    )
    return [ExcludedInput("identical_files", sum(repeated), len(images), note)]


def exif_rotated_images(paths: Sequence[ImageFile]) -> list[ExcludedInput]:
    """Return the images with an EXIF rotation, which is not applied."""
    count = sum(map(has_exif_rotation, paths))
    if not count:
        return []
    note = f"{count:,} of {len(paths):,} images have an EXIF rotation, which is not applied, as in CLIP itself"
    return [ExcludedInput("exif_turn", count, len(paths), note)]


def drop_truncated_duplicates(tasks: Sequence[Task], rows: TokenRows) -> tuple[tuple[Task, ...], list[ExcludedInput]]:
    """Drop altered texts that equal their originals after the model has truncated both.

    Args:
        tasks: all tasks of a benchmark.
        rows: tokens of all its texts, and whether each text was truncated.

    Returns:
        The tasks, and the excluded input. Classes with equal tokens are kept, and their tasks count them as ties.
    """
    ids, is_truncated = rows
    if any(task.has_classes for task in tasks):
        first_with_tokens: dict[tuple[int, ...], int] = {}
        token_group = np.array([first_with_tokens.setdefault(tuple(row), place) for place, row in enumerate(ids)])
        tasks = [task.read_as(token_group) for task in tasks]
    if not any(is_truncated):
        return tuple(tasks), []
    longest = max(len(row) for row, truncated in zip(ids, is_truncated, strict=True) if truncated)
    note = f"{sum(is_truncated)} of {len(ids)} texts are longer than the model's {longest} tokens and were truncated"
    excluded = [ExcludedInput("cut_texts", sum(is_truncated), len(ids), note)]
    # Texts with equal tokens although neither is truncated are a property of the benchmark.
    first = {tuple(row): place for place, row in enumerate(ids) if is_truncated[place]}
    token_group = np.array([first.get(tuple(row), place) for place, row in enumerate(ids)])
    remaining_tasks, phrases, dropped_texts, altered_texts = [], [], 0, 0
    counted_variants: set[tuple[str, str]] = set()
    for task in tasks:
        remaining, count, total = task.drop_truncated_duplicates(token_group)
        if remaining is not None:
            remaining_tasks.append(remaining)
        if (task.name, task.variant) in counted_variants:
            continue  # the same texts, with corrupted images or another seed
        counted_variants.add((task.name, task.variant))
        if count:
            phrase = f"all {total}, so it is not evaluated" if remaining is None else f"{count} of {total}"
            phrases.append(f"{task.name}, {task.variant}: {phrase}")
        dropped_texts += count
        altered_texts += total
    if phrases:
        note = f"altered texts left out because truncation makes them equal to their originals ({'; '.join(phrases)})"
        excluded.append(ExcludedInput("same_tokens", dropped_texts, altered_texts, note))
    return tuple(remaining_tasks), excluded
