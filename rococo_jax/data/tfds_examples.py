"""Examples of TensorFlow Datasets (TFDS), opened without TensorFlow, and their features by path."""

from collections.abc import Mapping
from typing import Any

from rococo_jax.errors import InputError

# Features of TFDS's captioning datasets, by role.
USUAL = {
    "image": ("image",),
    "captions": ("captions/text", "captions", "caption", "text"),
    "name": ("image/filename",),
}


def open_examples(name: str, dataset: str, split: str, options: Mapping[str, str]) -> tuple[Any, Mapping]:
    """The examples, and the first of them."""
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        wanted = "pip install 'rococo_jax[tfds]' (TensorFlow is not needed)"
        raise InputError(name, "tensorflow_datasets", "not installed", wanted) from None
    skip: Any = tfds.decode.SkipDecoding()
    for part in reversed(options.get("image", "image").split("/")):
        skip = {part: skip}
    try:
        examples = tfds.data_source(dataset, split=split, data_dir=options.get("data_dir"), decoders=skip)
        return examples, examples[0]
    except (tfds.core.DatasetNotFoundError, ValueError, KeyError, IndexError, NotImplementedError) as error:
        found = next(iter(str(error).strip().splitlines()), type(error).__name__)
        wanted = "a dataset, split and image feature of TFDS, which can read it by number"
        raise InputError(name, "dataset", found, wanted) from None


def choose_feature(role: str, options: Mapping[str, str], example: Mapping, name: str) -> str | None:
    """The feature of a role: the one given in the options, or the first usual one that the dataset has."""
    asked = (options[role],) if role in options else USUAL[role]
    for path in asked:
        if find_feature(example, path) is not None:
            return path
    if role == "name" and role not in options:
        return None
    raise InputError(name, role, f"the features {', '.join(sorted(example))}", " or ".join(asked))


def find_feature(example: Any, path: str) -> Any:
    """A feature by its path, or None. Names may contain slashes themselves (`image/filename`)."""
    if not isinstance(example, Mapping):
        return None
    if path in example:
        value = example[path]
        return None if isinstance(value, Mapping) else value
    first, _, rest = path.partition("/")
    return find_feature(example[first], rest) if rest and first in example else None


def text_of(value: bytes | str) -> str:
    """Return a text as a string."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
