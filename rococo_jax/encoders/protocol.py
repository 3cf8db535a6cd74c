"""Define the interfaces of models.

ImageTextEncoder, ImageTextScorer    what an object of a user has
Embeds, ScoresPairs                  what a loaded model does: one of the two, or both
LoadedModel                          what both have in common
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from rococo_jax.data.pixel_cache import PixelView
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.data.training_images import TrainingImages
from rococo_jax.encoders.device_steps import BatchFeatures, gather_in_order
from rococo_jax.errors import InputError

OnProgress = Callable[[int], None]
# The image and the text of each pair, as indices into two lists.
PairIndices = tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]


@runtime_checkable
class ImageTextEncoder(Protocol):
    """A model of any framework that embeds images and texts in one space.

    `evaluate` takes an object with these two methods. Optional members:

        name                          what tables call the model
        fingerprint() -> str          changes with weights and preprocessing; without it nothing is cached
        token_rows(texts)             (token ids of each text, whether the text was truncated); altered captions that
                                      are truncated to their originals are then left out
        with_prompt(prompt, role)     the same model with an instruction, or with one of its own prompts by name, and
                                      with a fingerprint of its own
    """

    def encode_image(self, images: list[Image.Image]) -> Float[np.ndarray, "images dim"]:
        """Return one embedding for each image: any length, any float type, any array that NumPy can read."""

    def encode_text(self, texts: list[str]) -> Float[np.ndarray, "texts dim"]:
        """Return one embedding for each text, as wide as the images'."""


@runtime_checkable
class ImageTextScorer(Protocol):
    """A model of any framework that scores how well an image and a text match, such as a reranker.

    An object with this method alone is a model, too. Its optional members are those of `ImageTextEncoder`, and:

        batch_size                    number of pairs in a call (32)
        check_texts(texts)            called with all texts before the first image is read; raises an error for a text
                                      that the model cannot read
    """

    def score_pairs(self, images: list[Image.Image], texts: list[str]) -> Float[np.ndarray, " pairs"]:
        """Return how well each image matches its text, on any scale, higher for a better match."""


class LoadedModel(abc.ABC):
    """A model that is ready to be evaluated. It `Embeds`, `ScoresPairs`, or does both.

    Attributes:
        name: what tables call it.
        mesh: the devices that similarities are computed on.
        training_images: the images that it was trained on; None if unknown.
        logit_scale: the factor that turns cosines into logits; None if it has none.
    """

    name: str
    mesh: jax.sharding.Mesh
    training_images: TrainingImages | None = None
    logit_scale: float | None = None

    @property
    def embedder(self) -> "Embeds | None":
        """The model that embeds images and texts, usually the model itself; None if it only scores pairs."""
        return None

    @property
    def pair_scorer(self) -> "ScoresPairs | None":
        """The model that scores pairs, usually the model itself; None if it only embeds."""
        return None

    def require_embedder(self) -> "Embeds":
        """Return `embedder`. Raises InputError if there is none."""
        if self.embedder is None:
            problem, expected = "none, only scores of pairs", "a model that embeds images and texts"
            raise InputError(self.name, "embeddings", problem, expected)
        return self.embedder

    @abc.abstractmethod
    def prepare(self, image: Image.Image) -> Any:
        """Return an image as `image_batches` and `score` take it; called in the threads that open files."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the name and everything that decides an embedding or score, as JSON.

        If `fingerprint` is None, nothing is cached and no result is reused.
        """

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return facts for readers of results; they decide no number."""

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """Return the token ids of each text and whether it was truncated; None if unknown."""
        return None

    def with_prompt(self, prompt: str, role: str) -> "LoadedModel":
        """Return the model with an instruction for `query` or `document`. Raises InputError if it takes none."""
        raise InputError(self.name, f"{role}_prompt", repr(prompt), "none: the model takes no such prompt")


class Embeds(LoadedModel):
    """A model that embeds images and texts.

    Features of a tower and its head are separate, so that models on one frozen tower share its features.

    Attributes:
        pixel_view: `prepare` with a key under which pixels are cached; None if they are not.
    """

    pixel_view: PixelView | None = None

    @property
    def embedder(self) -> "Embeds | None":
        """The model itself."""
        return self

    def encode_image(self, images: Any, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images dim"]:
        """Return unit embeddings of images, float32; `on_progress` is called with the number of finished images."""
        return self.project_image_features(self.image_features(images, on_progress))

    def encode_text(
        self, texts: Iterable[Any], on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "texts dim"]:
        """Return unit embeddings of texts, float32; `on_progress` is called with the number of finished texts."""
        return self.project_text_features(self.text_features(texts, on_progress))

    def image_features(self, images: Any, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images width"]:
        """Return features of the image tower before its head, of images as `encode_image` takes them."""
        return gather_in_order(self.name, "images", self.image_batches(images), on_progress)

    def text_features(
        self, texts: Iterable[Any], on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "texts width"]:
        """Return features of the text tower before its head, of texts as `encode_text` takes them."""
        return gather_in_order(self.name, "texts", self.text_batches(texts), on_progress)

    @abc.abstractmethod
    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """Yield `image_features` batch by batch: indices into the images, and their features."""

    @abc.abstractmethod
    def text_batches(self, texts: Iterable[Any]) -> Iterator[BatchFeatures]:
        """Yield `text_features` batch by batch: indices into the texts, and their features."""

    @abc.abstractmethod
    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[Any], Sequence[int]]:
        """Return texts as `text_batches` takes them, and their lengths; texts of one length are encoded together."""

    @abc.abstractmethod
    def project_image_features(self, features: np.ndarray) -> Float[np.ndarray, "images dim"]:
        """Return unit embeddings from the output of `image_features`, float32."""

    @abc.abstractmethod
    def project_text_features(self, features: np.ndarray) -> Float[np.ndarray, "texts dim"]:
        """Return unit embeddings from the output of `text_features`, float32."""

    @abc.abstractmethod
    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """Return everything that decides the features of one tower (`vision` or `text`); None if unknown."""


class ScoresPairs(LoadedModel):
    """A model that scores how well an image and a text match.

    Attributes:
        scale: the factor that turns differences of scores into log-odds.
        images_at_once: number of prepared images that are held for one call of `score`.
        adds_cosine: whether candidates are ranked by score plus cosine instead of score.
        score_name: name of what candidates are ranked by.
    """

    scale: float = 1.0
    images_at_once: int = 64
    adds_cosine: ClassVar[bool] = False
    score_name: str = "scores of pairs"

    @property
    def pair_scorer(self) -> "ScoresPairs | None":
        """The model itself."""
        return self

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise InputError for a text that the model cannot read; called with all texts before any pair is scored."""
        return

    @abc.abstractmethod
    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairIndices, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """Return the score of each pair: how well image and text match, higher for a better match.

        Args:
            images: as `prepare` returns them.
            texts: strings.
            pairs: the image and the text of each, as indices into `images` and `texts`.
            on_progress: called with the number of finished pairs.
        """
