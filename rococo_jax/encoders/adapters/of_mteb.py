"""mteb's `EncoderProtocol`, both ways: `mteb:NAME` and `FromMteb` evaluate its models here, `AsMteb` ours there.

mteb hands a loader of batches, dictionaries with a list under `text`, `image` or both, to
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
from rococo_jax.encoders.adapters.contents import hash_with_weights, library_versions
from rococo_jax.encoders.foreign_object import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

# Whose prompts are used, for models that have some: retrieval between images and captions.
_TASK = "MSCOCOI2TRetrieval"


def load(model: str, revision: str | None = None, device: str | None = None, batch_size: int = 32) -> "FromMteb":
    """A model of mteb's registry, as `mteb.get_model` takes it; `batch_size` images or texts at once."""
    import mteb

    made = mteb.get_model(model, revision, device)
    meta = made.mteb_model_meta
    about = {"model": meta.name, "revision": revision or meta.revision}
    return FromMteb(made, mteb.get_task(_TASK).metadata, batch_size, about=about)


class _Batches:
    """What models of mteb use of a `torch` DataLoader: batches, their number, and the names of the columns."""

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
    """An object with mteb's `encode`, evaluated here. It is handed `task_metadata`, for prompts.

    Attributes:
        encoder: the object.
        task_metadata: of the task whose prompts are used.
        batch_size: images or texts at once.
        name: what tables call it; its class's by default.
        about: name and revision, which identify a model that is computed elsewhere; None where they are not known, and
            then nothing is cached.
        role: `query` or `document`, as mteb's `prompt_type`.
    """

    encoder: Any
    task_metadata: Any = None
    batch_size: int = 32
    name: str = ""
    about: Mapping[str, Any] | None = None
    role: str | None = None

    def __post_init__(self):
        self.name = self.name or type(self.encoder).__name__
        if self.about is not None:
            self.fingerprint = functools.cache(self._fingerprint)

    def _fingerprint(self) -> str:
        """Return a hash of the object with its weights and prompts, and of its other arguments."""
        contents = hash_with_weights([self.encoder, self.task_metadata])
        return hash_json({**self.about, "role": self.role, "contents": contents, "versions": library_versions()})

    def with_prompt(self, prompt: str, role: str) -> "FromMteb":
        """The same with `prompt` for that role in place of the model's own.

        Raises InputError: the model has no prompts.
        """
        if not hasattr(self.encoder, "model_prompts"):
            found = f"a {type(self.encoder).__name__} without prompts"
            raise InputError(self.name, f"{role}_prompt", found, "a model of mteb with model_prompts")
        prompted = copy.copy(self.encoder)
        prompted.model_prompts = {**(self.encoder.model_prompts or {}), role: prompt}
        return dataclasses.replace(self, encoder=prompted, role=role)

    def picture_for_library(self, image: Image.Image) -> Image.Image:
        """As mteb's loader of images converts them."""
        return as_rgb(image, "dropped")

    def encode_image(self, images: list) -> np.ndarray:
        """One vector an image."""
        return self._encode("image", images)

    def encode_text(self, texts: list[str]) -> np.ndarray:
        """One vector a text."""
        return self._encode("text", texts)

    def _encode(self, column: str, items: Sequence[Any]) -> np.ndarray:
        about = {"task_metadata": self.task_metadata, "hf_split": "test", "hf_subset": "default"}
        if self.role is not None:
            import mteb

            about["prompt_type"] = mteb.types.PromptType(self.role)
        batches = _Batches(column, items, self.batch_size)
        return as_numpy(self.encoder.encode(batches, **about, batch_size=self.batch_size))


class AsMteb:
    """An object with `encode_image` and `encode_text`, such as `load_encoder` gives, with mteb's methods."""

    def __init__(self, encoder: Any):
        self.encoder = encoder

    @property
    def mteb_model_meta(self) -> Any:
        """The model's name, as mteb's `ModelMeta`."""
        import mteb

        about = {"name": f"rococo_jax/{self.encoder.name}", "modalities": ["text", "image"]}
        return mteb.models.ModelMeta.create_empty(about)

    def encode(self, inputs: Iterable[dict[str, list]], **about: Any) -> np.ndarray:
        """Vectors of all items in order; of an item with a text and an image the sum of the two."""
        del about  # no prompts
        parts = []
        for batch in inputs:
            found = [self.encoder.encode_text(list(batch["text"]))] if "text" in batch else []
            found += [self.encoder.encode_image(list(batch["image"]))] if "image" in batch else []
            parts.append(sum(map(as_numpy, found)))
        return np.concatenate(parts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines of all with all."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Cosines of corresponding rows."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(axis=1)


def _unit(vectors: Any) -> np.ndarray:
    vectors = np.atleast_2d(as_numpy(vectors))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
