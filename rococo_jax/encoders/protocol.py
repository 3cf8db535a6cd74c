"""What an encoder is: the protocol for users, and the wider one that evaluation uses inside."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float
from PIL import Image

from rococo_jax.encoders.device_steps import BatchFeatures

OnProgress = Callable[[int], None]


@runtime_checkable
class ImageTextEncoder(Protocol):
    """Any model of any framework that puts images and texts into one space.

    `evaluate` takes an object with these two methods. An attribute `name` is what tables call it; a method
    `fingerprint() -> str` that changes with the weights and the preprocessing lets embeddings and results be cached.
    """

    def encode_image(self, images: list[Image.Image]) -> Float[np.ndarray, "images dim"]:
        """One vector an image; any length, any float type, any array that NumPy can read."""

    def encode_text(self, texts: list[str]) -> Float[np.ndarray, "texts dim"]:
        """One vector a text, as wide as the images'."""


@runtime_checkable
class FeatureEncoder(Protocol):
    """What embedding needs: features of each tower apart from the heads, so that models on one frozen tower share them.

    Attributes:
        name: what tables call it.
        mesh: the devices that similarities are computed on.
        logit_scale: the factor on cosines by which they become probabilities; None where it has none.
    """

    name: str
    mesh: jax.sharding.Mesh
    logit_scale: float | None

    def prepare(self, image: Image.Image) -> Any:
        """An image as `image_features` takes it; called in the threads that open files."""

    def image_features(self, images: Iterable[Any], on_progress: OnProgress | None = None) -> np.ndarray:
        """BatchFeatures of prepared images, in order."""

    def text_features(self, texts: Sequence[str], on_progress: OnProgress | None = None) -> np.ndarray:
        """BatchFeatures of texts, in order."""

    def image_batches(self, images: Iterable[Any]) -> Iterator[BatchFeatures]:
        """As `image_features`, batch by batch: places among the images, and their features."""

    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[Any], Sequence[int]]:
        """Texts as `text_batches` takes them, and a length of each; texts of one length are encoded together."""

    def text_batches(self, texts: Sequence[Any]) -> Iterator[BatchFeatures]:
        """BatchFeatures of prepared texts, batch by batch: places among the texts, and their features."""

    def project_image_features(self, features: np.ndarray) -> Float[np.ndarray, "images dim"]:
        """Unit vectors in float32."""

    def project_text_features(self, features: np.ndarray) -> Float[np.ndarray, "texts dim"]:
        """Unit vectors in float32."""

    def describe(self) -> dict[str, Any]:
        """All that decides an embedding, as JSON, and the name."""

    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """All that decides the features of one tower (`vision` or `text`); None where that is not known."""

    def facts(self) -> dict[str, Any]:
        """What a reader of results wants to know of the model."""
