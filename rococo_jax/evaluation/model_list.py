"""List the models of an evaluation: names, globs, and lists in files, each with a folder for its results.

# models.txt: one source a line
openai/clip-vit-base-patch32
checkpoints/*.pt
demo:plain                       a model that comes with the package
zoo:fare2                        a published fine-tune, or a tag of open_clip (zoo:ViT-B-32/openai)
my_models.py:make_clip           a function that returns an encoder of any framework
open_clip:ViT-B-32/openai        a model of another library, run by it
runs/*/model                     of `rococo train`: named after the run's folder
runs/sc-vc@best                  a checkpoint: RUN@best, RUN@latest, RUN@STEP, or RUN/checkpoints/STEP
ours=runs/sc-vc/model            the name in tables and of the results' folder
"""

import dataclasses
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.checkpoints.hub import PREFIX
from rococo_jax.checkpoints.zoo import ZOO
from rococo_jax.encoders.adapters import is_adapted, name_of
from rococo_jax.encoders.foreign import is_factory
from rococo_jax.errors import InputError
from rococo_jax.texts import read_lines

# What `rococo train` leaves in its working folder; the model's name in tables is the folder's.
_OF_A_RUN, _ALONGSIDE, _CHECKPOINTS = "model", "metrics.jsonl", "checkpoints"
_LONGEST_NAME = 200  # bytes; file systems take 255, and temporary names are longer
# What an evaluation writes beside the folders of its models.
_FILES_BESIDE = ("journal.jsonl", "report.html", "report.csv", "report.md", "results.json",
                 "per_query.parquet", "pairs.parquet", "examples.parquet")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A source that `load_model` takes, and what to call it."""

    source: str
    name: str
    renamed: bool = False


def read_models(arguments: Sequence[str], file: str | os.PathLike | None = None) -> list[NamedModel]:
    """The models of a command line, then those of a list, each once. Relative paths are from the working folder.

    Args:
        arguments: sources, globs, or `name=source`.
        file: the same, one a line; what follows a `#` at the start of a line or after a space is a comment.

    Raises:
        InputError: the file cannot be read, a glob matches nothing, no model is named, or two models share a name.
    """
    entries = [("MODEL", argument) for argument in arguments]
    if file is not None:
        lines = enumerate(map(_entry_of, read_lines(file, "a list of models, one a line")), 1)
        entries += [(f"{file}, line {number}", entry) for number, entry in lines if entry]
    by_source: dict[str, tuple[str, NamedModel]] = {}
    for where, entry in entries:
        for model in _models_of(where, entry):
            by_source.setdefault(model.source, (where, model))
    if not by_source:
        raise InputError(file or "MODEL", "models", "none", "at least one model")
    for where, model in by_source.values():
        if len(by_source) > 1 and len(os.fsencode(model.name)) > _LONGEST_NAME:
            raise InputError(where, "name", f"{len(model.name)} letters", "a name that a folder can have: name=source")
        if model.name in _FILES_BESIDE:
            raise InputError(where, "name", repr(model.name), "a name that no file of the run has: name=source")
    by_name: dict[str, str] = {}
    for where, model in by_source.values():
        other = by_name.setdefault(model.name, model.source)
        if other != model.source:
            raise InputError(
                where, "name", f"{model.name!r} for {model.source}, which {other} has", "different names: name=source"
            )
    return [model for _, model in by_source.values()]


def shard_of(models: Sequence[NamedModel], shard: str) -> list[NamedModel]:
    """Every n-th model for `shard` = "k/n": n processes that take one shard each do all of them, none twice.

    Raises:
        InputError: it is not of that form, or k is not from 1 to n.

    >>> [model.name for model in shard_of([NamedModel(name, name) for name in "abcde"], "2/3")]
    ['b', 'e']
    """
    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InputError("models", "shard", shard, "k/n, with k from 1 to n")
    return list(models[int(number) - 1 :: int(count)])


def _entry_of(line: str) -> str:
    """A line without its comment."""
    if line.lstrip().startswith("#"):
        return ""
    return line.strip() if _exists(line.strip()) else line.split(" #")[0].strip()


def _models_of(where: str, entry: str) -> list[NamedModel]:
    if _exists(entry):
        return [_named(entry)]
    name, equals, source = entry.partition("=")
    if equals and "/" not in name:
        name, source = name.strip(), source.strip()
        if not name or not source or name in (".", ".."):
            raise InputError(where, "model", repr(entry), "name=source")
        return [NamedModel(source, name, renamed=True)]
    if not glob.has_magic(entry):
        return [_named(entry)]
    paths = sorted(glob.glob(entry, recursive=True))  # noqa: PTH207 (a Path takes no absolute pattern)
    matches = [match for match in paths if _may_be_a_model(match)]
    if not matches:
        raise InputError(where, "models", f"nothing that matches {entry!r}", "a pattern of model folders or files")
    return [_named(match) for match in matches]


def _exists(entry: str) -> bool:
    try:
        return Path(entry).exists()
    except OSError:  # a name that is too long, which `name=source` may be
        return False


def _named(source: str) -> NamedModel:
    if source.startswith((PREFIX, ZOO)) or is_adapted(source):
        return NamedModel(source, name_of(source))
    if is_factory(source):
        return NamedModel(source, source.rpartition(":")[2])
    path = Path(source)
    resolved = path.resolve() if _exists(source) else path
    if resolved.name == _OF_A_RUN and (resolved.parent / _ALONGSIDE).is_file():
        return NamedModel(source, resolved.parent.name, renamed=True)
    if resolved.parent.name == _CHECKPOINTS and resolved.name.isdecimal():
        return NamedModel(source, f"{resolved.parent.parent.name}@{resolved.name}")
    return NamedModel(source, resolved.name)


def _may_be_a_model(match: str) -> bool:
    """Folders all, so that a broken one is reported; of files those of a known form, so that a README is passed by."""
    from rococo_jax.checkpoints.formats import find_format

    if Path(match).is_dir():
        return True
    try:
        find_format(match)
    except InputError:
        return False
    return True
