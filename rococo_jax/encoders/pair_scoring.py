"""Objects of any framework that score pairs of an image and a text: rerankers, matching heads, models that answer.

class MyReranker:
    name = "my reranker"
    def score_pairs(self, images, texts): ...  # lists of equal length, PIL images and str -> (n,), higher is better
"""

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
from jaxtyping import Float

from rococo_jax.encoders.foreign_object import SAME, ForeignObject, as_numpy, run_user_code, warn_of_other_values
from rococo_jax.encoders.protocol import OnProgress, PairPlaces, PairScorer
from rococo_jax.errors import InputError

_PAIRS_AT_ONCE = 32


class ForeignPairScorer(ForeignObject, PairScorer):
    """An object with `score_pairs` as evaluation uses it: checked, in batches, halved where memory runs out.

    Args:
        model: the object; its own `batch_size`, if it has one, is given to a call, else 32.
        name: what tables call it; its own name, or its class's, by default.

    Raises:
        InputError: the object has no such method.
    """

    def __init__(self, model: Any, name: str | None = None):
        super().__init__(model, name, {"score_pairs": "(list of PIL images, list of str)"})
        self.scale = self.logit_scale or 1.0
        self.pairs_at_once = int(getattr(model, "batch_size", _PAIRS_AT_ONCE))
        self._is_checked = False

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairPlaces, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `PairScorer`. Raises InputError: a score is NaN, there are not as many as pairs, or the object raises."""
        images, scores, done = list(images), np.empty(len(pairs[0]), np.float32), 0
        while done < len(scores):
            some = slice(done, done + self.pairs_at_once)
            made = self._scores([images[each] for each in pairs[0][some]], [texts[each] for each in pairs[1][some]])
            if made is None:
                continue
            if not self._is_checked:
                self._is_checked = True
                first = self._scores([images[pairs[0][done]]], [texts[pairs[1][done]]])
                difference = float(np.abs(made[:1] - first).max())
                if difference > SAME * max(1.0, float(np.abs(made).max())):
                    warn_of_other_values(self.name, "score_pairs", "scores", difference)
            scores[some] = made
            done += len(made)
            on_progress(len(made))
        return scores

    def _scores(self, images: list, texts: list[str]) -> np.ndarray | None:
        """One call, checked; None, and a smaller batch from here on, where it ran out of memory."""
        wanted = f"({len(texts)},), a number for each pair"
        try:
            made = self.model.score_pairs(images, texts)
        except Exception as error:
            if not is_out_of_memory(error) or len(texts) == 1:
                return run_user_code(self.name, functools.partial(_raise, error), "score_pairs", wanted)
            self.pairs_at_once = len(texts) // 2
            warning = f"out of memory with {len(texts)} pairs, going on with {self.pairs_at_once} at once"
            print(f"rococo: {self.name}: {warning}", file=sys.stderr)
            return None
        array = run_user_code(self.name, lambda: as_numpy(made), "score_pairs", wanted)
        if array.shape != (len(texts),) or not np.issubdtype(array.dtype, np.number):
            raise InputError(self.name, "score_pairs", f"shape {array.shape} of {array.dtype}", wanted)
        if not np.isfinite(array.astype(np.float32)).all():
            row = np.flatnonzero(~np.isfinite(array.astype(np.float32)))[0]
            raise InputError(self.name, "score_pairs", f"{array[row]} for {texts[row]!r}", "finite numbers")
        return array.astype(np.float32)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of torch, XLA or Python says that memory ran out."""
    return isinstance(error, MemoryError) or any(
        word in str(error) for word in ("out of memory", "OutOfMemory", "RESOURCE_EXHAUSTED")
    )


def _raise(error: Exception) -> NoReturn:
    raise error
