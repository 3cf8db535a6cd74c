"""Input that is left out, or that no model can tell apart: counted, said in one line, and kept in the results."""

import collections
import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.image_files import Place
from rococo_jax.data.images import FileImages


@dataclasses.dataclass(frozen=True)
class LostInput:
    """One kind of input that does not count as it stands in the files.

    Attributes:
        kind: `missing_images`, `limit`, `identical_files`, `cut_texts` or `same_tokens`.
        count: how many images, texts or altered captions.
        total: of how many.
        note: one sentence for a reader of results.
    """

    kind: str
    count: int
    total: int
    note: str


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
    places: Mapping[str, Place],
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
    return images, (*lost, *identical_files(images)), data


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
