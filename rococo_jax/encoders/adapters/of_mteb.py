"""Adapters for mteb's `EncoderProtocol` in both directions.

`mteb:NAME` and `FromMteb` evaluate mteb's models here; `AsMteb` evaluates models of this project in mteb. mteb passes a
loader of batches, dictionaries with a list under `text`, `image` or both, to
`encode(inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **kwargs)`.
"""

import copy
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from rococo_jax.data.pictures import as_rgb
from rococo_jax.encoders.adapters.contents import CurrentWeights, contents_and_modules, library_versions
from rococo_jax.encoders.foreign import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

# The task whose prompts are used, for models with prompts: retrieval between images and captions.
_TASK = "MSCOCOI2TRetrieval"


def load(model: str, revision: str | None = None, device: str | None = None, batch_size: int = 32) -> "FromMteb":
    """Load a model of mteb's registry by `mteb.get_model`; it encodes `batch_size` images or texts at once."""
    import mteb

    encoder = mteb.get_model(model, revision, device)
    meta = encoder.mteb_model_meta
    identity = {"model": meta.name, "revision": revision or meta.revision}
    return FromMteb(encoder, mteb.get_task(_TASK).metadata, batch_size, identity=identity)


class _Batches:
    """The part of a torch DataLoader that models of mteb use: batches, their number, and the column names."""

    def __init__(self, column: str, items: Sequence[Any], batch_size: int):
        self.column, self.items, self.batch_size = column, items, batch_size
        self.dataset = self
        self.features = {column: None}

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, list]]:
        for start in range(0, len(self.items), self.batch_size):
            yield {self.column: list(self.items[start : start + self.batch_size])}


@dataclasses.dataclass
class FromMteb:
    """An object with mteb's `encode` as an encoder.

    Attributes:
        encoder: the object.
        task_metadata: metadata of the task whose prompts are used.
        batch_size: number of images or texts in a batch.
        name: what tables call it; by default the name of its class.
        identity: name and revision, which identify a model that is computed elsewhere; if None, nothing is cached.
        role: `query` or `document`, mteb's `prompt_type`.
    """

    encoder: Any
    task_metadata: Any = None
    batch_size: int = 32
    name: str = ""
    identity: Mapping[str, Any] | None = None
    role: str | None = None

    def __post_init__(self):
        self.name = self.name or type(self.encoder).__name__
        if self.identity is not None:
            self.fingerprint = self._fingerprint

    @functools.cached_property
    def _contents(self) -> tuple[Any, CurrentWeights]:
        """The contents of the object and of the task, with prompts and without weights, and the weights."""
        contents, modules = contents_and_modules([self.encoder, self.task_metadata])
        return contents, CurrentWeights(modules)

    def _fingerprint(self) -> str:
        """Return a hash of the object with its current weights, and of its other arguments."""
        contents, weights = self._contents
        about = {"role": self.role, "contents": contents, "weights": weights.hashes(), "versions": library_versions()}
        return hash_json({**self.identity, **about})

    def with_prompt(self, prompt: str, role: str) -> "FromMteb":
        """Return the model with `prompt` in place of its own prompt for that role.

        Raises InputError if the model has no prompts.
        """
        if not hasattr(self.encoder, "model_prompts"):
            problem = f"a {type(self.encoder).__name__} without prompts"
            raise InputError(self.name, f"{role}_prompt", problem, "a model of mteb with model_prompts")
        prompted = copy.copy(self.encoder)
        prompted.model_prompts = {**(self.encoder.model_prompts or {}), role: prompt}
        return dataclasses.replace(self, encoder=prompted, role=role)

    def picture_for_library(self, image: Image.Image) -> Image.Image:
        """Convert an image as mteb's image loader does."""
        return as_rgb(image, "dropped")

    def encode_image(self, images: list) -> np.ndarray:
        """Return one embedding for each image."""
        return self._encode("image", images)

    def encode_text(self, texts: list[str]) -> np.ndarray:
        """Return one embedding for each text."""
        return self._encode("text", texts)

    def _encode(self, column: str, items: Sequence[Any]) -> np.ndarray:
        kwargs = {"task_metadata": self.task_metadata, "hf_split": "test", "hf_subset": "default"}
        if self.role is not None:
            import mteb

            kwargs["prompt_type"] = mteb.types.PromptType(self.role)
        batches = _Batches(column, items, self.batch_size)
        return as_numpy(self.encoder.encode(batches, **kwargs, batch_size=self.batch_size))


class AsMteb:
    """An object with `encode_image` and `encode_text`, such as `load_encoder` returns, as a model of mteb."""

    def __init__(self, encoder: Any):
        self.encoder = encoder

    @property
    def mteb_model_meta(self) -> Any:
        """The model's name in mteb's `ModelMeta`."""
        import mteb

        fields = {"name": f"rococo_jax/{self.encoder.name}", "modalities": ["text", "image"]}
        return mteb.models.ModelMeta.create_empty(fields)

    def encode(self, inputs: Iterable[dict[str, list]], **kwargs: Any) -> np.ndarray:
        """Return embeddings of all items in order; that of an item with a text and an image is the sum of the two."""
        del kwargs  # the model has no prompts
        outputs = []
        for batch in inputs:
            embeddings = [self.encoder.encode_text(list(batch["text"]))] if "text" in batch else []
            embeddings += [self.encoder.encode_image(list(batch["image"]))] if "image" in batch else []
            outputs.append(sum(map(as_numpy, embeddings)))
        return np.concatenate(outputs)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the cosine of each embedding of the first with each of the second."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the cosines of corresponding rows."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(axis=1)


def _unit(vectors: Any) -> np.ndarray:
    vectors = np.atleast_2d(as_numpy(vectors))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
