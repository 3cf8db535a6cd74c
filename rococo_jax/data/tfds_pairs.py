"""Read datasets of TensorFlow Datasets (TFDS) as sources of pairs, by index and without TensorFlow.

    tfds:coco_captions/2014?split=train
    tfds:my_pairs?split=train[:90%]&data_dir=/data/tfds&image=photo&captions=texts/en&name=file

The part before the `?` is TFDS's name of the dataset, with config and version. Options are `split` (train by default),
`data_dir`, and the features of the image, of the captions (one text or a sequence) and of the image's name, with a
slash for nested features; by default those of TFDS's captioning datasets. Images stay encoded.
"""

import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.data.content_hashes import hash_files, hash_in_threads
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.errors import InputError, import_library
from rococo_jax.storage import hash_bytes, hash_json

# Features of TFDS's captioning datasets, by role.
_USUAL_FEATURES = {
    "image": ("image",),
    "captions": ("captions/text", "captions", "caption", "text"),
    "name": ("image/filename",),
}
_OPTIONS = ("split", "data_dir", *_USUAL_FEATURES)


class TfdsPairs(PairSource):
    """The examples of a random-access source as image-text pairs.

    Args:
        examples: mappings of features, by number; images as the bytes of their file, texts as bytes or strings.
        features: the feature of the `image`, of the `captions`, and of the `name` (None to use the number).
        identity: JSON values that identify the dataset, version and split.
        source: names the dataset in errors.
        files: the local files that contain the examples, if they are local.
    """

    def __init__(
        self,
        examples: Sequence,
        features: Mapping[str, str | None],
        identity: Any,
        source: str,
        files: Sequence[Path] = (),
    ):
        self.examples, self.features, self.identity, self.source = examples, dict(features), identity, source
        self.files = tuple(files)
        self._hash: str | None = None

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> PairSample:
        example = self.examples[index]
        image = find_feature(example, self.features["image"])
        texts = find_feature(example, self.features["captions"])
        captions = tuple(map(_as_string, [texts] if isinstance(texts, bytes | str) else texts))
        default_name = f"example {index} of {self.source}"
        if not isinstance(image, bytes):
            raise InputError(default_name, self.features["image"], type(image).__name__, "an encoded image")
        if not captions:
            raise InputError(default_name, self.features["captions"], "no caption", "at least one")
        name = self.features["name"] and find_feature(example, self.features["name"])
        return PairSample(image, _as_string(name) if name else default_name, captions)

    def hash(self) -> str:
        """Return the hash of the dataset's name, version and split, of the features, and of the bytes of its files.

        If the files are not local, all examples are read.
        """
        if self._hash is None:
            contents = hash_files(self.files) if self.files else hash_in_threads(self._hash_example, range(len(self)))
            about = {"identity": self.identity, "examples": len(self), "features": self.features}
            self._hash = hash_json({**about, "contents": contents})
        return self._hash

    def _hash_example(self, index: int) -> str:
        sample = self[index]
        return hash_bytes(sample.read_bytes(), hash_json([sample.name, sample.captions]).encode())


def open_tfds(name: str) -> TfdsPairs:
    """Open `tfds:NAME?options`. TFDS prepares a dataset that is not on disk yet, which may download it.

    Raises InputError: TFDS is not installed, has no such dataset or split or cannot read it by index, or a feature is
    missing.
    """
    dataset, _, query = name.removeprefix("tfds:").partition("?")
    options = {key: values[-1] for key, values in urllib.parse.parse_qs(query, strict_parsing=bool(query)).items()}
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise InputError(name, "option", unknown[0], f"one of {', '.join(_OPTIONS)}")
    split = options.get("split", "train")
    examples, first = _open_examples(name, dataset, split, options)
    features = {role: _choose_feature(role, options, first, name) for role in _USUAL_FEATURES}
    return TfdsPairs(examples, features, [examples.dataset_info.full_name, split], name, _local_files(examples, split))


def _local_files(examples: Any, split: str) -> list[Path]:
    """Return the files that contain a split, or none if one of them is not local."""
    paths = [Path(path) for path in examples.dataset_info.splits[split].filepaths]
    return paths if all(path.is_file() for path in paths) else []


def _open_examples(name: str, dataset: str, split: str, options: Mapping[str, str]) -> tuple[Any, Mapping]:
    """Return the examples, and the first of them."""
    tfds = import_library(name, "tensorflow_datasets", "tfds")  # which needs no TensorFlow
    skip: Any = tfds.decode.SkipDecoding()
    for part in reversed(options.get("image", "image").split("/")):
        skip = {part: skip}
    try:
        examples = tfds.data_source(dataset, split=split, data_dir=options.get("data_dir"), decoders=skip)
        return examples, examples[0]
    except (tfds.core.DatasetNotFoundError, ValueError, KeyError, IndexError, NotImplementedError) as error:
        problem = next(iter(str(error).strip().splitlines()), type(error).__name__)
        expected = "a dataset, split and image feature of TFDS, which can read it by number"
        raise InputError(name, "dataset", problem, expected) from None


def _choose_feature(role: str, options: Mapping[str, str], example: Mapping, name: str) -> str | None:
    """Return the feature of a role: the one in the options, or the first usual one that the dataset has."""
    candidates = (options[role],) if role in options else _USUAL_FEATURES[role]
    for path in candidates:
        if find_feature(example, path) is not None:
            return path
    if role == "name" and role not in options:
        return None
    raise InputError(name, role, f"the features {', '.join(sorted(example))}", " or ".join(candidates))


def find_feature(example: Any, path: str) -> Any:
    """Return a feature by its path, or None. A name may itself contain a slash (`image/filename`)."""
    if not isinstance(example, Mapping):
        return None
    if path in example:
        value = example[path]
        return None if isinstance(value, Mapping) else value
    first, _, rest = path.partition("/")
    return find_feature(example[first], rest) if rest and first in example else None


def _as_string(text: bytes | str) -> str:
    return text.decode("utf-8", errors="replace") if isinstance(text, bytes) else str(text)
