"""Encoders that give a matrix of token vectors for each image and text, as scorers of pairs by MaxSim."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.encoders.foreign_object import ENCODES, ForeignObject, as_numpy, run_user_code
from rococo_jax.encoders.late_interaction import max_sim
from rococo_jax.encoders.protocol import OnProgress, PairPlaces, PairScorer
from rococo_jax.errors import InputError

_AT_ONCE = 32
# Numbers of texts' tokens that are kept between runs of images: 1 GB.
_NUMBERS_KEPT = 2**28


class TokenScorer(ForeignObject, PairScorer):
    """An object whose `encode_image` and `encode_text` give a list of matrices, one an item, of one width."""

    methods, decides_by = ENCODES, "MaxSim of token vectors"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.scale = self.logit_scale or 1.0
        self._texts: dict[str, np.ndarray] = {}

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether an object with both methods gives a matrix for a text; it is asked with one text."""
        if not super().fits(model):
            return False
        try:
            return run_user_code("", lambda: as_numpy(model.encode_text(["a photo"])[0]).ndim) == 2
        except InputError:  # the first real call reports it
            return False

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairPlaces, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `PairScorer`. Texts are encoded once. Raises InputError: not a matrix an item, or NaN."""
        of_images = self._encoded("encode_image", images)
        if sum(matrix.size for matrix in self._texts.values()) > _NUMBERS_KEPT:
            self._texts = {}
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        self._texts |= zip(new, self._encoded("encode_text", new), strict=True)
        return max_sim(of_images, [self._texts[text] for text in texts], pairs, on_progress)

    def describe(self) -> dict[str, Any]:
        """Return the description of the object, and how its matrices become scores."""
        return {**super().describe(), "scores": "MaxSim"}

    def _encoded(self, method: str, items: Iterable[Any]) -> list[np.ndarray]:
        items, matrices = iter(items), []
        while batch := list(itertools.islice(items, _AT_ONCE)):
            wanted = f"{len(batch)} matrices of token vectors, finite numbers"
            encode = getattr(self.model, method)
            arrays = run_user_code(
                self.name, lambda encode=encode, batch=batch: list(map(as_numpy, encode(batch))), method, wanted
            )
            widths = {array.shape[1] if array.ndim == 2 and len(array) else None for array in arrays}
            whole = len(arrays) == len(batch) and len(widths) == 1 and None not in widths
            if not whole or not all(np.isfinite(array).all() for array in arrays):
                found = ", ".join(str(array.shape) for array in arrays[:3])
                raise InputError(self.name, method, f"{len(arrays)} of shapes {found}, or NaN", wanted)
            matrices += [array.astype(np.float32) for array in arrays]
        return matrices
