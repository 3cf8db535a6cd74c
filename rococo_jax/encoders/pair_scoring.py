"""Score pairs of an image and a text by a model of any framework: a reranker, matching head, or generating model.

class MyReranker:
    name = "my reranker"
    def score_pairs(self, images, texts): ...  # lists of equal length, PIL images and str -> (n,), higher is better
"""

import numbers
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import MOST_BYTES, size_in_memory
from rococo_jax.encoders.device_steps import is_out_of_memory
from rococo_jax.encoders.foreign_model import ForeignModel, run_user_code
from rococo_jax.encoders.protocol import OnProgress, PairIndices
from rococo_jax.errors import InputError

_PAIRS_AT_ONCE = 32


class ForeignPairScorer(ForeignModel):
    """An object with `score_pairs`. Scores are checked; batches are halved if memory runs out.

    The object's `batch_size`, if it has one, is the number of pairs in a call, else 32.

    Raises InputError if `batch_size` is not a whole number above 0.
    """

    methods, prompt_roles = {"score_pairs": "(list of PIL images, list of str)"}, ("query",)

    def __init__(self, model: Any, *args: Any):
        super().__init__(model, *args)
        self.scale = self.logit_scale or 1.0
        batch_size = getattr(model, "batch_size", None)
        if batch_size is not None and not (isinstance(batch_size, numbers.Integral) and batch_size >= 1):
            raise InputError(self.name, "batch_size", repr(batch_size), "a whole number, at least 1, or None")
        self.pairs_at_once = int(batch_size or _PAIRS_AT_ONCE)

    @property
    def pair_scorer(self) -> "ForeignPairScorer":
        """The model itself."""
        return self

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairIndices, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `LoadedModel`. Images are read in order, and only those of the next pairs are held.

        Raises InputError if a score is NaN, there are not as many as pairs, or the object raises an error.
        """
        remaining, images_by_number = enumerate(images), {}
        order, scores, start = np.argsort(pairs[0], kind="stable"), np.empty(len(pairs[0]), np.float64), 0
        while start < len(scores):
            batch = order[start : start + self.pairs_at_once]
            count = _read_images(pairs[0][batch].tolist(), remaining, images_by_number)
            batch = batch[:count]
            batch_images = [images_by_number[index] for index in pairs[0][batch].tolist()]
            batch_texts = [texts[index] for index in pairs[1][batch].tolist()]
            try:
                batch_scores = self._call_score_pairs(batch_images, batch_texts)
            except InputError as error:
                if count == 1 or not is_out_of_memory(error.__cause__):
                    raise
                self.pairs_at_once = count // 2
                warning = f"out of memory with {count} pairs, continuing with {self.pairs_at_once} at once"
                print(f"rococo: {self.name}: {warning}", file=sys.stderr)
                continue
            self._compare_with_single_pairs(batch_images, batch_texts, batch_scores)
            scores[batch] = batch_scores
            start += count
            for number in [number for number in images_by_number if number < pairs[0][batch[-1]]]:
                del images_by_number[number]
            on_progress(count)
        return scores

    def check_texts(self, texts: Sequence[str]) -> None:
        """Call the object's `check_texts`, which raises an error for a text that it cannot read."""
        check = getattr(self.model, "check_texts", None)
        if check is not None:
            run_user_code(self.name, lambda: check(list(texts)), "check_texts", "texts that the model reads")

    def _compare_with_single_pairs(self, images: list, texts: list[str], scores: np.ndarray) -> None:
        """Warn, after the first call, if the score of the shortest or longest text depends on the rest of the batch.

        Probabilities are compared by their logarithms, so that small ones count as much as large ones.
        """
        lengths = [len(text) for text in texts]
        rows = sorted({int(np.argmin(lengths)), int(np.argmax(lengths))})
        are_probabilities = bool(((scores > 0) & (scores < 1)).all())

        def comparable(scores: np.ndarray) -> np.ndarray:
            return np.log(np.maximum(scores, np.finfo(np.float32).tiny)) if are_probabilities else scores

        def score_alone() -> np.ndarray:
            single = [self._call_score_pairs([images[row]], [texts[row]]) for row in rows]
            return comparable(np.concatenate(single))

        self.compare_once("score_pairs", comparable(scores[rows]), score_alone)

    def _call_score_pairs(self, images: list, texts: list[str]) -> Float[np.ndarray, " pairs"]:
        """Return the checked scores of one call."""
        expected = f"({len(texts)},), a number for each pair"
        array = self.call("score_pairs", expected, images, texts)
        if array.shape != (len(texts),) or not np.issubdtype(array.dtype, np.number):
            raise InputError(self.name, "score_pairs", f"shape {array.shape} of {array.dtype}", expected)
        # Sums of log-probabilities can differ by less than float32 resolves.
        scores = array.astype(np.float64)
        if not np.isfinite(scores).all():
            row = np.flatnonzero(~np.isfinite(scores))[0]
            raise InputError(self.name, "score_pairs", f"{array[row]} for {texts[row]!r}", "finite numbers")
        return scores


def _read_images(numbers: Sequence[int], remaining: Iterator[tuple[int, Any]], images: dict[int, Any]) -> int:
    """Read the images of pairs into `images` until they take 256 MB; return the number of pairs, at least 1.

    Args:
        numbers: number of the image of each pair, ascending.
        remaining: numbers and images that were not read yet.
        images: images by number.
    """
    for count, number in enumerate(numbers):
        while number not in images:
            read_number, image = next(remaining)
            images[read_number] = image
        if count and sum(map(size_in_memory, images.values())) > MOST_BYTES:
            return count
    return len(numbers)
