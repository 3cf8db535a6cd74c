"""What an encoder is: the protocol for users, and the base of those that evaluation uses inside."""

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
from rococo_jax.encoders.device_steps import BatchFeatures, collected
from rococo_jax.errors import InputError

OnProgress = Callable[[int], None]
# The image and the text of each pair, as places in two lists.
PairPlaces = tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]


@runtime_checkable
class ImageTextEncoder(Protocol):
    """Any model of any framework that puts images and texts into one space.

    `evaluate` takes an object with these two methods. An attribute `name` is what tables call it; a method
    `fingerprint() -> str` that changes with the weights and the preprocessing lets embeddings and results be cached. A
    method `token_rows(texts) -> (rows, cut)`, the ids that it reads of each text and whether the text was cut, lets
    altered captions that are cut to their originals be left out. A method `with_prompt(prompt, role)` gives the same
    model under an instruction, or under one of its own by its name, with a fingerprint of its own.
    """

    def encode_image(self, images: list[Image.Image]) -> Float[np.ndarray, "images dim"]:
        """One vector an image; any length, any float type, any array that NumPy can read."""

    def encode_text(self, texts: list[str]) -> Float[np.ndarray, "texts dim"]:
        """One vector a text, as wide as the images'."""


@runtime_checkable
class ScoresPairs(Protocol):
    """Any model of any framework that says how well an image and a text fit: a reranker, a matching head.

    An object with this method alone is a model, too; all else is as of `ImageTextEncoder`. An attribute `batch_size` is
    the number of pairs of a call (32). A method `check_texts(texts)` is called with all texts before the first image is
    read, and raises for one that the model cannot read.
    """

    def score_pairs(self, images: list[Image.Image], texts: list[str]) -> Float[np.ndarray, " pairs"]:
        """How well each image fits the text beside it, on any scale, higher for a better fit."""


class LoadedModel(abc.ABC):
    """What every loaded model says of itself, whatever it computes.

    Attributes:
        name: what tables call it.
        training_images: what it was trained on; None where that is not known.
        has_vectors: whether it is a `FeatureEncoder`.
        pair_scorer: scores given pairs; None where it has vectors alone.
        prompt_roles: for which sides it may take an instruction: `query`, `document`.
    """

    name: str
    training_images: TrainingImages | None = None
    has_vectors: ClassVar[bool] = True
    pair_scorer: "PairScorer | None" = None
    prompt_roles: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def prepare(self, image: Image.Image) -> Any:
        """An image as `image_batches` and `score` take it; called in the threads that open files."""

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """The ids that the model reads of each text, and whether the text was cut; None where that is not known."""
        return None

    def with_prompt(self, prompt: str, role: str) -> "LoadedModel":
        """The same model under an instruction. Raises InputError: it takes none for that role."""
        raise InputError(self.name, f"{role}_prompt", repr(prompt), "none: the model takes no such prompt")

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that decides a vector or score, as JSON, and the name; where `fingerprint` is None nothing is kept."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a reader of results wants to know of the model; decides no figure."""


class FeatureEncoder(LoadedModel):
    """What embedding needs: features of each tower apart from the heads, so that models on one frozen tower share them.

    Attributes:
        mesh: the devices that similarities are computed on.
        logit_scale: the factor on cosines by which they become probabilities; None where it has none.
        pixel_view: `prepare` with its key, by which pixels are kept; None where it has none.
    """

    mesh: jax.sharding.Mesh
    logit_scale: float | None
    pixel_view: PixelView | None = None
    has_vectors = True

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
    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """As `image_features`, batch by batch: places among the images, and their features."""

    @abc.abstractmethod
    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[Any], Sequence[int]]:
        """Texts as `text_batches` takes them, and a length of each; texts of one length are encoded together."""

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
    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """All that decides the features of one tower (`vision` or `text`); None where that is not known."""


class PairScorer(LoadedModel):
    """What scoring pairs needs: how well each given pair of an image and a text fits, higher for a better fit.

    Attributes:
        scale: by which differences of scores become log-odds.
        images_at_once: images that are held, as `prepare` gives them, for one call of `score`.
        adds_cosine: whether candidates are ranked by their score plus their cosine; else by the score.
        decides_by: the same in words.
    """

    scale: float = 1.0
    images_at_once: int = 64
    adds_cosine: bool = False
    decides_by: str = "scores of pairs"
    has_vectors = False
    pair_scorer = property(lambda self: self)

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise InputError for a text that the model cannot read; called with all texts before any pair is scored."""
        return

    @abc.abstractmethod
    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairPlaces, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """The score of each pair, float32; `on_progress` is called with the number of pairs done.

        Args:
            images: as `prepare` gives them.
            texts: strings.
            pairs: the image and the text of each, as places in `images` and `texts`.
        """
