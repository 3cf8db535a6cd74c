"""Similarities of images and altered captions for any kind of model, and the goals of attacks on captions.

    own        s(I, altered) >= max over the image's own captions; every query counts as right before
    gallery    s(I, altered) >= max over all captions: it ranks first; right before is R@1
    image      max over other images >= s(I, altered): the misspelled caption no longer finds its image

The margin is the left side minus the right side: a goal is reached where it is 0 or more, up to `TIE`. A caption of the
gallery is wrong for an image if it is none of the image's captions.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.images import FileImages
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images
from rococo_jax.encoders.protocol import Embeds, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.influence import WordTokenizer
from rococo_jax.perturb.text.shared_prefix import PrefixEncoder, can_share_prefix
from rococo_jax.progress import progress

# Similarities that differ by less are a tie: programs of other shapes change the last digits of an embedding.
TIE = 1e-6
# Pairs that a scorer of pairs may need before the attack starts.
MOST_PAIRS = 2_000_000
_IMAGES_AT_ONCE = 256


def _rows_of_distinct(texts: Iterable[str]) -> dict[str, int]:
    """Return each distinct text with its place among them."""
    return {text: row for row, text in enumerate(dict.fromkeys(texts))}


class Similarities(abc.ABC):
    """Similarities between the images of a data set and any texts."""

    @abc.abstractmethod
    def of_images(self, images: Sequence[int], texts: Sequence[Sequence[str]]) -> list[Float[np.ndarray, " texts"]]:
        """Return for each image its similarities with its own list of texts."""

    @abc.abstractmethod
    def blocks(self, texts: Sequence[str]) -> Iterator[tuple[slice, Float[np.ndarray, "images texts"]]]:
        """Yield all similarities, for some images at a time."""


class EmbeddedSimilarities(Similarities):
    """Cosines of a model that embeds. Common prefixes of altered captions are encoded once in causal text towers."""

    def __init__(self, model: Embeds, files: Sequence[Any], cache: EmbeddingCache):
        self.model, self.cache = model, cache
        self.images = embed_images(model, files, cache).astype(np.float64)
        self._prefixes: PrefixEncoder | None = None
        if isinstance(model, Encoder) and model.spec.text is not None and model.tokenizer is not None:
            words = WordTokenizer(model.tokenizer)
            if can_share_prefix(model.spec.text, words.prefix, words.suffix):
                self._prefixes, self._end = PrefixEncoder(model), words.suffix[0]

    def of_images(self, images: Sequence[int], texts: Sequence[Sequence[str]]) -> list[Float[np.ndarray, " texts"]]:
        """Encode each distinct text once, and compute one product for each image."""
        distinct = _rows_of_distinct(text for of_image in texts for text in of_image)
        if not distinct:
            return [np.zeros(0) for _ in images]
        embeddings = self.encode(list(distinct))
        rows = ([distinct[text] for text in of_image] for of_image in texts)
        return [embeddings[row] @ self.images[image] for image, row in zip(images, rows, strict=True)]

    def blocks(self, texts: Sequence[str]) -> Iterator[tuple[slice, Float[np.ndarray, "images texts"]]]:
        """Encode each distinct text once, and yield the cosines with all images."""
        distinct = _rows_of_distinct(texts)
        embeddings = self.encode(list(distinct))[[distinct[text] for text in texts]]
        for start in range(0, len(self.images), _IMAGES_AT_ONCE):
            rows = slice(start, start + _IMAGES_AT_ONCE)
            yield rows, self.images[rows] @ embeddings.T

    def encode(self, texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        """Return unit embeddings of distinct texts; nothing is cached."""
        if self._prefixes is None:
            return self.model.encode_text(list(texts)).astype(np.float64)
        ids = self.model.token_ids(list(texts))
        can_share = np.array([row[-1] == self._end and row.count(self._end) == 1 for row in ids])
        embeddings = np.empty((len(texts), self.images.shape[1]))
        for encode, rows in ((self._prefixes.encode, can_share), (self.model.encode_text, ~can_share)):
            if rows.any():
                embeddings[rows] = encode([ids[row] for row in np.flatnonzero(rows)])
        return embeddings


class PairSimilarities(Similarities):
    """Scores of a model that scores image-text pairs."""

    def __init__(self, scorer: ScoresPairs, files: Sequence[Any]):
        self.scorer, self.images = scorer, FileImages(tuple(map(str, files)), tuple(files))

    def of_images(self, images: Sequence[int], texts: Sequence[Sequence[str]]) -> list[Float[np.ndarray, " texts"]]:
        """Score the pairs of each image with its texts."""
        distinct = _rows_of_distinct(text for of_image in texts for text in of_image)
        if not distinct:
            return [np.zeros(0) for _ in images]
        self.scorer.check_texts(list(distinct))
        counts = [len(of_image) for of_image in texts]
        pairs = np.repeat(np.arange(len(images)), counts), np.array([distinct[t] for each in texts for t in each])
        prepared = self.images.read(list(images), self.scorer.prepare)
        scores = self.scorer.score(prepared, list(distinct), pairs, lambda count: None).astype(np.float64)
        return np.split(scores, np.cumsum(counts)[:-1])

    def blocks(self, texts: Sequence[str]) -> Iterator[tuple[slice, Float[np.ndarray, "images texts"]]]:
        """Score every pair, for 16 images at a time. Raises InputError for more than `MOST_PAIRS` pairs."""
        if len(self.images) * len(texts) > MOST_PAIRS:
            found = f"{len(self.images) * len(texts):,} pairs of images and texts"
            raise InputError(self.scorer.name, "pairs", found, f"at most {MOST_PAIRS:,}: fewer images, or the goal own")
        for start in range(0, len(self.images), 16):
            rows = range(start, min(start + 16, len(self.images)))
            yield slice(start, rows.stop), np.stack(self.of_images(rows, [texts] * len(rows)))


class Query:
    """A query of an attack: an image and those of its captions that may be altered.

    Attributes:
        image: number of the image.
        captions: the captions to alter: all of the image, or a single one that is itself the query.
    """

    def __init__(self, image: int, captions: Sequence[str]):
        self.image, self.captions = image, tuple(captions)


class CaptionGoal:
    """The goals `own` and `gallery`: an altered caption is at least as similar to the image as the true ones.

    Attributes:
        right: whether each query is right before the attack.
    """

    def __init__(
        self, name: str, similarities: Similarities, queries: Sequence[Query], items: Sequence[CaptionedImage]
    ):
        self.similarities = similarities
        own, wrong = best_own_and_wrong(similarities, items, with_wrong=name == "gallery")
        self.threshold = np.maximum(own, wrong)
        self.right: Bool[np.ndarray, " queries"] = own > wrong + TIE

    def margins(self, queries: Sequence[Query], texts: Sequence[Sequence[str]]) -> list[Float[np.ndarray, " texts"]]:
        """Return the margin of each text of each query."""
        images = [query.image for query in queries]
        similarities = self.similarities.of_images(images, texts)
        return [each - self.threshold[image] + TIE for image, each in zip(images, similarities, strict=True)]


class ImageGoal:
    """The goal `image`: a caption no longer finds its image. `right` as of `CaptionGoal`.

    Raises InputError for a caption that every image has.
    """

    def __init__(
        self, name: str, similarities: Similarities, queries: Sequence[Query], items: Sequence[CaptionedImage]
    ):
        self.similarities = similarities
        self.owners: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            for caption in item.captions:
                self.owners.setdefault(caption, []).append(number)
        for caption, owners in self.owners.items():
            if len(owners) == len(items):
                found = f"{caption!r} for every image"
                raise InputError("captions", "images", found, "an image that does not have it, for changes of letters")
        before = self.margins(queries, [query.captions for query in queries])
        self.right = np.array([margin.item() < 0 for margin in before])

    def margins(self, queries: Sequence[Query], texts: Sequence[Sequence[str]]) -> list[Float[np.ndarray, " texts"]]:
        """Return the margin of each text of each query."""
        counts = [len(each) for each in texts]
        flat = [text for of_query in texts for text in of_query]
        own, wrong = np.full((2, len(flat)), -np.inf)
        owners = [self.owners[query.captions[0]] for query in queries]
        spans = list(zip(np.cumsum([0, *counts[:-1]]), np.cumsum(counts), strict=True))
        for rows, block in self.similarities.blocks(flat) if flat else ():
            for (start, stop), images in zip(spans, owners, strict=True):
                is_own = np.isin(np.arange(rows.start, rows.start + len(block)), images)
                part = block[:, start:stop]
                own[start:stop] = np.maximum(own[start:stop], part[is_own].max(axis=0, initial=-np.inf))
                wrong[start:stop] = np.maximum(wrong[start:stop], part[~is_own].max(axis=0, initial=-np.inf))
        return np.split(wrong - own + TIE, np.cumsum(counts)[:-1])


Goal = CaptionGoal | ImageGoal
GOALS: Mapping[str, Callable[..., Goal]] = {"own": CaptionGoal, "gallery": CaptionGoal, "image": ImageGoal}


def best_own_and_wrong(
    similarities: Similarities, items: Sequence[CaptionedImage], with_wrong: bool = True
) -> tuple[Float[np.ndarray, " images"], Float[np.ndarray, " images"]]:
    """Return for each image its best similarity with its own captions, and with all other captions of the data.

    Without `with_wrong`, the second is minus infinity, and only the pairs of images with their captions are scored.
    """
    if not with_wrong:
        of_own = similarities.of_images(range(len(items)), [item.captions for item in items])
        return np.array([each.max() for each in of_own]), np.full(len(items), -np.inf)
    row_of_text = _rows_of_distinct(caption for item in items for caption in item.captions)
    own, wrong = np.full((2, len(items)), -np.inf)
    with progress("ranking the captions", len(items), "images") as advance:
        for rows, block in similarities.blocks(list(row_of_text)):
            for place, row in enumerate(range(rows.start, rows.start + len(block))):
                columns = [row_of_text[caption] for caption in items[row].captions]
                own[row] = block[place, columns].max()
                block[place, columns] = -np.inf
                wrong[row] = block[place].max()
            advance(len(block))
    return own, wrong
