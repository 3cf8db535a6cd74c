"""Evaluation settings: tasks, protocol, mixed galleries, corruptions, prompts and limits."""

import dataclasses
import operator
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.options import Option, declared

PROTOCOLS = ("paper", "strict")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of an evaluation, apart from the models and the data.

    Attributes:
        tasks: evaluate only these tasks (default: all of each benchmark)
        protocol: paper follows the published files and code; strict normalises captions, drops altered captions that
            change nothing, and counts ties as errors
        mixed_galleries: galleries of RoCOCO's text_to_image: mix_R and patch_R with a ratio R, control, or none
        seeds: seeds of the mixing; results are averaged over them
        corruptions: also evaluate on corrupted images: kinds of ImageNet-C, or all (default: none)
        severities: severities of the corruptions, 1 to 5
        corrupted_benchmarks: corrupt the images of these benchmarks only (default: of all)
        templates: prompts of classes: 1, 5, 30 or 80 of ours, or files with one template per line, {} for the class;
            the first set is used throughout, the others are further variants
        out_images: folder of out-of-distribution images for classification benchmarks; may be repeated
        bindings: training captions in any form; choices among texts are then also counted by whether these captions
            contain the bindings of the true and of the false text, such as (red, dog)
        rerank: re-rank the K best by cosine similarity with pair scores (BLIP's matching head, a reranker); published
            for BLIP: 256 on COCO (default: 0, off: a pair scorer then ranks whole galleries)
        only: evaluate only the images or items that a file lists, one per line, as JSON, or as rococo select writes
            them; NAME=FILE for each of several benchmarks
        limit: quick look at N images of each benchmark: the first, or in turns from its classes or parts; the numbers
            are comparable only with each other (default: 0, all)
        allow_missing_images: leave out images that do not exist; the results say so
        require_clean: refuse models that were trained on images of a benchmark, or without a list of training images

    In Python, a string or a number stands for a tuple of one: `corruptions="fog"`, `seeds=1`.

    Raises:
        InputError: a name is unknown (the nearest is suggested), or a number is out of range.
    """

    tasks: Annotated[tuple[str, ...], Option("A,B")] = ()
    protocol: Literal["paper", "strict"] = "paper"
    mixed_galleries: Annotated[tuple[str, ...], Option("A,B")] = ("mix_0.9", "patch_0.9")
    seeds: Annotated[tuple[int, ...], Option("N,N")] = (1, 10, 100)
    corruptions: Annotated[tuple[str, ...], Option("A,B")] = ()
    severities: Annotated[tuple[int, ...], Option("N,N")] = (1, 3, 5)
    corrupted_benchmarks: Annotated[tuple[str, ...], Option("A,B")] = ()
    templates: Annotated[tuple[str, ...], Option("N,FILE")] = ("80",)
    out_images: Annotated[tuple[tuple[str, str], ...], Option("NAME=DIR")] = ()
    bindings: Annotated[str | None, Option("CAPTIONS")] = None
    rerank: Annotated[int, Option("K")] = 0
    only: Annotated[tuple[str, ...], Option("FILE", repeated=True)] = ()
    limit: Annotated[int, Option("N")] = 0
    allow_missing_images: bool = False
    require_clean: bool = False

    def __post_init__(self):
        # Imported here because it imports JAX, which the help of a command does not need.
        from rococo_jax.perturb.images.corruptions import CORRUPTIONS, check_severity, find_corruption

        for name, values in as_tuples(vars(self)).items():
            object.__setattr__(self, name, values)
        if self.corruptions == ("all",):
            object.__setattr__(self, "corruptions", tuple(CORRUPTIONS))
        check_known("protocol", [self.protocol], PROTOCOLS)
        if not self.seeds or not all(0 <= seed < 2**32 for seed in self.seeds):
            raise InputError("settings", "seeds", list(self.seeds), "whole numbers from 0 to 4294967295, at least one")
        for kind in self.corruptions:
            find_corruption(kind)
        for severity in self.severities:
            check_severity(severity)
        if self.corrupted_benchmarks and not self.corruptions:
            found = f"{', '.join(self.corrupted_benchmarks)}, but no corruptions"
            raise InputError("settings", "corrupted_benchmarks", found, "the kinds of corruption, too")
        for name in ("rerank", "limit"):
            if getattr(self, name) < 0:
                raise InputError("settings", name, getattr(self, name), "0 for none, or a whole number above it")

    def corruptions_of(self, benchmark: str) -> tuple[str, ...]:
        """Return the kinds of corruption of a benchmark's images."""
        return self.corruptions if benchmark in (self.corrupted_benchmarks or (benchmark,)) else ()

    def wants(self, task: str) -> bool:
        """Return whether a task is requested."""
        return not self.tasks or task in self.tasks


def one_or_more(values: Any) -> tuple[Any, ...]:
    """Return a string, a path or a number as a tuple of one, and several as a tuple.

    >>> one_or_more("fog"), one_or_more(1), one_or_more(["fog", "snow"])
    (('fog',), (1,), ('fog', 'snow'))
    """
    if isinstance(values, str | os.PathLike) or not isinstance(values, Iterable):
        return (values,)
    return tuple(values)


def _read_texts(values: Any) -> tuple[str, ...]:
    return tuple(str(value) if isinstance(value, int) else os.fspath(value) for value in one_or_more(values))


def _read_numbers(values: Any) -> tuple[int, ...]:
    return tuple(map(operator.index, one_or_more(values)))


def _read_pairs(values: Any) -> tuple[tuple[str, str], ...]:
    pairs = values.items() if isinstance(values, Mapping) else values
    is_one = isinstance(pairs, Sequence) and len(pairs) == 2 and isinstance(pairs[0], str)
    return tuple((name, os.fspath(folder)) for name, folder in ([pairs] if is_one else pairs))


# For each kind of value: the function that reads a tuple of them, and a phrase for errors.
_READERS: dict[Any, tuple[Callable[[Any], tuple[Any, ...]], str]] = {
    str: (_read_texts, "one text, or several"),
    int: (_read_numbers, "one whole number, or several"),
    tuple[str, str]: (_read_pairs, "pairs of a name and a folder"),
}


def as_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, with tuples for all settings of several values.

    Raises InputError: a value is not of its setting's kind.

    >>> as_tuples({"corruptions": "fog", "seeds": 1, "templates": [5, "mine.txt"], "limit": 3})
    {'corruptions': ('fog',), 'seeds': (1,), 'templates': ('5', 'mine.txt'), 'limit': 3}
    """
    kinds = {each.name: each.kind for each in declared(Settings) if typing.get_origin(each.kind) is tuple}
    read = dict(settings)
    for name in kinds.keys() & settings.keys():
        reader, wanted = _READERS[typing.get_args(kinds[name])[0]]
        try:
            read[name] = reader(settings[name])
        except (TypeError, ValueError):
            raise InputError("settings", name, repr(settings[name])[:80], wanted) from None
    return read


def check_known(field: str, names: Sequence[str], allowed: Sequence[str], source: str = "settings") -> None:
    """Raise InputError, which suggests the nearest name, for a name that is not allowed."""
    for name in names:
        if name not in allowed:
            raise unknown_name(source, field, name, allowed, "rococo benchmarks")
