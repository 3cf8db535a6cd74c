"""List the models of an evaluation: names, globs, and lists in files, each with a folder for its results.

# models.txt: one source per line
openai/clip-vit-base-patch32
checkpoints/*.pt
demo:plain                       a model that comes with the package
zoo:fare2                        a published fine-tuned model, or a tag of open_clip (zoo:ViT-B-32/openai)
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

from rococo_jax.checkpoints.zoo import PREFIX, ZOO, demo_folder, find_published
from rococo_jax.encoders.adapters import is_adapted, name_of
from rococo_jax.encoders.foreign import is_factory
from rococo_jax.errors import InputError
from rococo_jax.texts import read_lines

# Files of `rococo train` in its working directory, which gives the model its name in tables.
_OF_A_RUN, _ALONGSIDE, _CHECKPOINTS = "model", "metrics.jsonl", "checkpoints"
_LONGEST_NAME = 200  # bytes; file systems allow 255, and temporary names are longer
# Files that an evaluation writes beside the folders of its models.
_RESERVED_NAMES = (
    *("journal.jsonl", "report.html", "report.csv", "report.md"),
    *("results.json", "per_query.parquet", "pairs.parquet", "examples.parquet"),
)


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """Source for `load_model`, and the name of the model."""

    source: str
    name: str
    renamed: bool = False

    def at_image_size(self, size: int | None) -> "NamedModel":
        """Return the model with the side of its images, in pixels, in its name."""
        return NamedModel(self.source, f"{self.name}{size_suffix(size)}", renamed=True)


def size_suffix(size: int | None) -> str:
    """Return the end of the name of a model that is evaluated at several image sizes, for one of them."""
    return f"@{size}px"


def read_models(arguments: Sequence[str], file: str | os.PathLike | None = None) -> list[NamedModel]:
    """Return the models of a command line, then those of a list, each once.

    Relative paths are relative to the working directory.

    Args:
        arguments: sources, globs, or `name=source`.
        file: list of the same, one per line; a `#` at the start of a line or after a space begins a comment.

    Raises:
        InputError: the file cannot be read, a glob matches nothing, no model is named, or two models have one name.
    """
    entries = [("MODEL", argument) for argument in arguments]
    if file is not None:
        lines = enumerate(map(_entry_of, read_lines(file, "a list of models, one a line")), 1)
        entries += [(f"{file}, line {number}", entry) for number, entry in lines if entry]
    by_source: dict[str, tuple[str, NamedModel]] = {}
    for location, entry in entries:
        for model in _models_of(location, entry):
            by_source.setdefault(model.source, (location, model))
    if not by_source:
        raise InputError(file or "MODEL", "models", "none", "at least one model")
    for location, model in by_source.values():
        if len(by_source) > 1 and len(os.fsencode(model.name)) > _LONGEST_NAME:
            raise InputError(
                location, "name", f"{len(model.name)} letters", "a name short enough for a folder: name=source"
            )
        if model.name in _RESERVED_NAMES:
            raise InputError(
                location,
                "name",
                repr(model.name),
                "a name that is not reserved for a file of the evaluation: name=source",
            )
    by_name: dict[str, str] = {}
    for location, model in by_source.values():
        other = by_name.setdefault(model.name, model.source)
        if other != model.source:
            raise InputError(
                location,
                "name",
                f"{model.name!r} for {model.source}, which is also the name of {other}",
                "different names: name=source",
            )
    return [model for _, model in by_source.values()]


def shard_of(models: Sequence[NamedModel], shard: str) -> list[NamedModel]:
    """Return every n-th model for `shard` = "k/n", so that n processes with one shard each evaluate every model once.

    Raises:
        InputError: the shard does not have that form, or k is not between 1 and n.

    >>> [model.name for model in shard_of([NamedModel(name, name) for name in "abcde"], "2/3")]
    ['b', 'e']
    """
    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InputError("models", "shard", shard, "k/n, with k from 1 to n")
    return list(models[int(number) - 1 :: int(count)])


def _entry_of(line: str) -> str:
    """Return a line without its comment."""
    if line.lstrip().startswith("#"):
        return ""
    return line.strip() if _exists(line.strip()) else line.split(" #")[0].strip()


def _models_of(location: str, entry: str) -> list[NamedModel]:
    if _exists(entry):
        return [_named(entry)]
    name, equals, source = entry.partition("=")
    if equals and "/" not in name:
        name, source = name.strip(), source.strip()
        if not name or not source or name in (".", ".."):
            raise InputError(location, "model", repr(entry), "name=source")
        return [dataclasses.replace(_named(source), name=name, renamed=True)]
    if equals and (is_factory(source) or _exists(source)):
        raise InputError(
            location, "name", repr(name), "a name without a slash, since results have a folder of that name"
        )
    if not glob.has_magic(entry):
        return [_named(entry)]
    paths = sorted(glob.glob(entry, recursive=True))  # noqa: PTH207 (a Path takes no absolute pattern)
    matches = [match for match in paths if _may_be_a_model(match)]
    if not matches:
        raise InputError(location, "models", f"nothing matching {entry!r}", "a pattern of model folders or files")
    return [_named(match) for match in matches]


# False for an entry that is too long for a path, as `name=source` may be, where `Path.exists` raises an error.
_exists = os.path.exists


def _named(source: str) -> NamedModel:
    if source.startswith((PREFIX, ZOO)):
        # Refuse an unknown name now, and not when the model is loaded, after all data have been read.
        _ = demo_folder(source) or find_published(source)
        return NamedModel(source, name_of(source))
    if is_adapted(source):
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
    """Accept every folder, so that a damaged one is reported, but only files of a known format."""
    from rococo_jax.checkpoints.formats import find_format

    if Path(match).is_dir():
        return True
    try:
        find_format(match)
    except InputError:
        return False
    return True
