"""What users hand over as images and texts, as the programs of a model take it."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import TextSpec


def as_pixels(images: Any, image_size: int, preprocessing: Preprocessing) -> Iterator[np.ndarray]:
    """Image by image: uint8 as the model wants it, or float pixels of its size as they are.

    Raises:
        InputError: an array of another shape, or float pixels of another size.
    """
    if isinstance(images, np.ndarray | jax.Array):
        images = np.asarray(images)
        if images.ndim != 4 or images.shape[3] != 3:
            raise InputError("images", "shape", images.shape, "(images, height, width, 3)")
        size = (image_size,) * 2
        if images.dtype != np.uint8 and images.shape[1:3] != size:
            raise InputError("pixels", "size", images.shape[1:3], f"{size}, as the model sees them")
        if images.dtype == np.uint8 and images.shape[1:3] != size:
            images = (Image.fromarray(image) for image in images)
    return (x if isinstance(x, np.ndarray) else preprocessing.resize(x) for x in images)


def token_ids(name: str, spec: TextSpec | None, tokenizer: Tokenizer | None, texts: Sequence[Any]) -> list[list[int]]:
    """The ids of each text, strings or lists of ids, of the model `name`, special tokens in place.

    Raises:
        InputError: the model has no text tower or no tokenizer, a text has more tokens than its context, ids that a
            look-up would clip, or no end where it is pooled.
    """
    if spec is None:
        raise InputError(name, "text tower", "none", "a model with a text tower")
    if tokenizer is None:
        raise InputError(name, "tokenizer", "none", "a model that came with its tokenizer files")
    if isinstance(texts, str) or len(texts) == 0:
        raise InputError(name, "texts", repr(texts), "a non-empty sequence of strings or lists of token ids")
    ids = tokenizer.encode(list(texts)) if isinstance(texts[0], str) else [list(map(int, t)) for t in texts]
    longest = max(map(len, ids))
    if longest > spec.context_length:
        raise InputError(name, "token ids", f"{longest} tokens", f"at most {spec.context_length}")
    for row in ids:
        if row and not 0 <= min(row) <= max(row) < spec.vocabulary_size:
            found = max(row) if min(row) >= 0 else min(row)
            raise InputError(name, "token ids", found, f"0 to {spec.vocabulary_size - 1}")
        if spec.pooling == "first_eos" and spec.eos_id not in row:
            raise InputError(name, "token ids", f"no {spec.eos_id} in a text", "every text ended by it")
    return ids
