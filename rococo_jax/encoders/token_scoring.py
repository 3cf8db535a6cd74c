"""Score pairs by MaxSim with an encoder that returns a matrix of token embeddings for each image and text."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import chunks
from rococo_jax.encoders.foreign_model import ENCODER_METHODS, ForeignModel, as_numpy, run_user_code
from rococo_jax.encoders.late_interaction import max_sim
from rococo_jax.encoders.protocol import OnProgress, PairIndices
from rococo_jax.errors import InputError

_ITEMS_AT_ONCE = 32
# Limit of the cached token embeddings of texts, in numbers: 1 GB.
_CACHED_NUMBERS = 2**28


class TokenScorer(ForeignModel):
    """An object whose `encode_image` and `encode_text` return a list of matrices of one width, one for each item."""

    methods, score_name = ENCODER_METHODS, "MaxSim of token embeddings"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.scale = self.logit_scale or 1.0
        self._texts: dict[str, np.ndarray] = {}

    @property
    def pair_scorer(self) -> "TokenScorer":
        """The model itself."""
        return self

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Return whether an object with both methods returns a matrix for a text; one text is encoded to find out."""
        if not super().fits(model):
            return False
        try:
            return run_user_code("", lambda: as_numpy(model.encode_text(["a photo"])[0]).ndim) == 2
        except InputError:  # the first real call reports it
            return False

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairIndices, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `LoadedModel`. Each text is encoded once. Raises InputError unless every item has a finite matrix."""
        image_tokens = self._encode("encode_image", self.batches(images, _ITEMS_AT_ONCE))
        if sum(matrix.size for matrix in self._texts.values()) > _CACHED_NUMBERS:
            self._texts = {}
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        self._texts |= zip(new, self._encode("encode_text", chunks(new, _ITEMS_AT_ONCE)), strict=True)
        return max_sim(image_tokens, [self._texts[text] for text in texts], pairs, on_progress)

    def describe(self) -> dict[str, Any]:
        """Return the description of the object, and the name of the score."""
        return {**super().describe(), "scores": "MaxSim"}

    def _encode(self, method: str, batches: Iterable[list]) -> list[np.ndarray]:
        matrices = []
        for batch in batches:
            expected = f"{len(batch)} matrices of token embeddings, finite numbers"
            encode = getattr(self.model, method)
            arrays = run_user_code(
                self.name, lambda encode=encode, batch=batch: list(map(as_numpy, encode(batch))), method, expected
            )
            widths = {array.shape[1] if array.ndim == 2 and len(array) else None for array in arrays}
            have_one_width = len(arrays) == len(batch) and len(widths) == 1 and None not in widths
            if not have_one_width or not all(np.isfinite(array).all() for array in arrays):
                problem = ", ".join(str(array.shape) for array in arrays[:3])
                raise InputError(self.name, method, f"{len(arrays)} of shapes {problem}, or NaN", expected)
            matrices += [array.astype(np.float32) for array in arrays]
        return matrices
