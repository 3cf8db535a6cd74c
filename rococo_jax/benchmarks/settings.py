"""What an evaluation asks for, apart from the models and the data."""

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
    """The questions of an evaluation.

    Attributes:
        tasks: only these tasks (default: all of each benchmark)
        protocol: paper, the published files and ways; or strict, ties and oddities of the data count against the model
        mixed_galleries: galleries of RoCOCO's text_to_image: mix_R and patch_R with a ratio R, control alone, or none
        seeds: seeds of the mixing; a variant is their mean
        corruptions: also ask the unaltered tasks on corrupted images: kinds of ImageNet-C, or all (default: none)
        severities: severities of the corruptions, 1 to 5
        corrupted_benchmarks: corrupt the images of these alone (default: of all)
        templates: prompts for classes: 1, 5, 30 or 80 of ours, or files with one template a line, {} for the class; the
            first is used throughout, the others are further variants
        out_images: images of none of the classes, from which those of the classes are to be told; may be repeated
        rerank: let scores of pairs (BLIP's matching head, a reranker) decide among the K best of every query by cosine;
            published for BLIP: 256 on COCO (default: 0, off; a model asked by pairs then scores whole galleries)
        limit: only N images of a benchmark, the first, or in turns from its classes or parts, for a trial: such figures
            compare with each other alone (default: 0, all)
        allow_missing_images: leave out images that are not there, with a note
        require_clean: refuse a model that was trained on images of a benchmark, or that has no list of its training
            images

    From Python, a string or a number stands for a tuple of one: `corruptions="fog"`, `seeds=1`.

    Raises:
        InputError: a name is unknown (the nearest is suggested), or a number is out of its range.
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
    rerank: Annotated[int, Option("K")] = 0
    limit: Annotated[int, Option("N")] = 0
    allow_missing_images: bool = False
    require_clean: bool = False

    def __post_init__(self):
        # Imports JAX, which no help of the command line needs.
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
        """The kinds that a benchmark's images are corrupted by."""
        return self.corruptions if benchmark in (self.corrupted_benchmarks or (benchmark,)) else ()

    def wants(self, task: str) -> bool:
        """Whether a task is asked for."""
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


# How a tuple of each kind is read, and what errors want of it.
_READERS: dict[Any, tuple[Callable[[Any], tuple[Any, ...]], str]] = {
    str: (_read_texts, "one text, or several"),
    int: (_read_numbers, "one whole number, or several"),
    tuple[str, str]: (_read_pairs, "pairs of a name and a folder"),
}


def as_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name with a tuple wherever a setting has several values.

    Raises InputError: a value is none of its setting's kind.

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


def check_known(field: str, names: Sequence[str], known: Sequence[str], source: str = "settings") -> None:
    """Raises InputError, which suggests the nearest, where a name is none of `known`."""
    for name in names:
        if name not in known:
            raise unknown_name(source, field, name, known, "rococo benchmarks")
