"""What an encoder is: the protocol for users, and the base of those that evaluation uses inside."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float
from PIL import Image

from rococo_jax.data.pixels import View
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.data.training_images import TrainingImages
from rococo_jax.encoders.device_steps import BatchFeatures, collected
from rococo_jax.errors import InputError

OnProgress = Callable[[int], None]


@runtime_checkable
class ImageTextEncoder(Protocol):
    """Any model of any framework that puts images and texts into one space.

    `evaluate` takes an object with these two methods. An attribute `name` is what tables call it; a method
    `fingerprint() -> str` that changes with the weights and the preprocessing lets embeddings and results be cached. A
    method `token_rows(texts) -> (rows, cut)`, the ids that it reads of each text and whether the text was cut, lets
    altered captions that are cut to their originals be left out.
    """

    def encode_image(self, images: list[Image.Image]) -> Float[np.ndarray, "images dim"]:
        """One vector an image; any length, any float type, any array that NumPy can read."""

    def encode_text(self, texts: list[str]) -> Float[np.ndarray, "texts dim"]:
        """One vector a text, as wide as the images'."""


class FeatureEncoder(abc.ABC):
    """What embedding needs: features of each tower apart from the heads, so that models on one frozen tower share them.

    Attributes:
        name: what tables call it.
        mesh: the devices that similarities are computed on.
        logit_scale: the factor on cosines by which they become probabilities; None where it has none.
        pixel_view: `prepare` with its key, by which pixels are kept; None where it has none.
        training_images: what it was trained on; None where that is not known.
    """

    name: str
    mesh: jax.sharding.Mesh
    logit_scale: float | None
    pixel_view: View | None = None
    training_images: TrainingImages | None = None

    def encode_image(self, images: Any, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images dim"]:
        """Unit vectors of images, float32; `on_progress` is called with the number of images done."""
        return self.project_image_features(self.image_features(images, on_progress))

    def encode_text(
        self, texts: Sequence[Any], on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "texts dim"]:
        """Unit vectors of texts, float32; `on_progress` is called with the number of texts done."""
        return self.project_text_features(self.text_features(texts, on_progress))

    def image_features(self, images: Any, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images width"]:
        """Features of the image tower before the head, as `encode_image` takes the images."""
        return collected(self.name, "images", self.image_batches(images), on_progress)

    def text_features(
        self, texts: Sequence[Any], on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "texts width"]:
        """Features of the text tower before the head, as `encode_text` takes the texts."""
        return collected(self.name, "texts", self.text_batches(texts), on_progress)

    @abc.abstractmethod
    def prepare(self, image: Image.Image) -> Any:
        """An image as `image_batches` takes it; called in the threads that open files."""

    @abc.abstractmethod
    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """As `image_features`, batch by batch: places among the images, and their features."""

    @abc.abstractmethod
    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[Any], Sequence[int]]:
        """Texts as `text_batches` takes them, and a length of each; texts of one length are encoded together."""

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """The ids that the model reads of each text, and whether the text was cut; None where that is not known."""
        return None

    @abc.abstractmethod
    def text_batches(self, texts: Sequence[Any]) -> Iterator[BatchFeatures]:
        """As `text_features`, batch by batch: places among the texts, and their features."""

    @abc.abstractmethod
    def project_image_features(self, features: np.ndarray) -> Float[np.ndarray, "images dim"]:
        """Unit vectors from what `image_features` gave, float32."""

    @abc.abstractmethod
    def project_text_features(self, features: np.ndarray) -> Float[np.ndarray, "texts dim"]:
        """Unit vectors from what `text_features` gave, float32."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that decides an embedding, as JSON, and the name."""

    @abc.abstractmethod
    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """All that decides the features of one tower (`vision` or `text`); None where that is not known."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a reader of results wants to know of the model; decides no figure."""

    def require_matching(self) -> None:
        """Raises InputError where the model has no matching head."""
        raise InputError(self.name, "matching head", "none", "a model with one, such as BLIP's for retrieval")
