"""Samples to a batch of arrays: pixels stacked, all texts tokenised together and padded to one length.

A batch holds this process's share b of the global batch:

    pixels          uint8 (b, h, w, 3)    8 bit, normalised on the device; absent where no pixels are wanted
    squashed        uint8 (b, h, w, 3)    the whole images, squashed; where they are wanted
    ids, text_mask  int32, bool (b, t)    the captions
    image_id        int32 (b,)            positives go by it, not by the diagonal
    caption_index   int32 (b,)            which of its image's captions
    sample_index    int64 (b,)            the sample's global number
    skipped_images  int32 ()              broken images that other ones replace

and, where a transform added the texts:

    altered_ids, altered_text_mask, altered_valid       (b, K, t), (b, K, t), (b, K)
    positive_ids, positive_text_mask, positive_valid    (b, t), (b, t), (b,)
    negative_ids, negative_text_mask, negative_valid    (b, N, t), (b, N, t), (b, N)

Where `valid` is False there is no text, and the ids are those of the empty text.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.data.tokenizers import Tokenizer

Batch = dict[str, np.ndarray]
TEXT_FIELDS = {"altered_captions": "altered", "hard_positive": "positive", "hard_negatives": "negative"}


@dataclasses.dataclass(frozen=True)
class MakeBatch:
    """Attributes:
    tokenizer: of the text tower.
    text_length: tokens of every text, special ones included.
    text_fields: key of further texts in a sample: name of their arrays in the batch.
    """

    tokenizer: Tokenizer
    text_length: int
    text_fields: Mapping[str, str]

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """The samples as one batch."""
        batch = {
            "image_id": _column(samples, "image_id", np.int32),
            "caption_index": _column(samples, "caption_index", np.int32),
            "sample_index": _column(samples, "sample_index", np.int64),
            "skipped_images": np.array(sum(sample["skipped"] for sample in samples), np.int32),
        }
        for view in {"pixels", "squashed"} & samples[0].keys():
            batch[view] = np.stack([sample[view] for sample in samples])
        batch["ids"], batch["text_mask"] = self._tokenise([sample["caption"] for sample in samples])
        for key, name in self.text_fields.items():
            if key in samples[0]:
                valid = [sample[f"{name}_valid"] for sample in samples] if f"{name}_valid" in samples[0] else None
                batch |= self._texts(name, [sample[key] for sample in samples], valid)
        return batch

    def _texts(self, name: str, texts: Sequence, valid: Sequence[np.ndarray] | None = None) -> Batch:
        """Ids, mask and validity of one text a sample, or of as many for each; None where there is none."""
        nested = np.array(texts, dtype=object)
        if valid is None:
            valid = np.array([text is not None for text in nested.ravel()], np.bool_).reshape(nested.shape)
        else:
            valid = np.stack(valid)
        ids, mask = self._tokenise(["" if text is None else text for text in nested.ravel()])
        shape = (*nested.shape, self.text_length)
        return {f"{name}_ids": ids.reshape(shape), f"{name}_text_mask": mask.reshape(shape), f"{name}_valid": valid}

    def _tokenise(
        self, texts: Sequence[str]
    ) -> tuple[Int[np.ndarray, "texts tokens"], Bool[np.ndarray, "texts tokens"]]:
        cut = [_cut(ids, self.text_length) for ids in self.tokenizer.encode(texts)]
        return self.tokenizer.pad(cut, self.text_length)


def _cut(ids: list[int], length: int) -> list[int]:
    """At most `length` ids, the last one, which ends the text, kept."""
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


def _column(samples: Sequence[Mapping[str, Any]], name: str, dtype: type) -> np.ndarray:
    return np.array([sample[name] for sample in samples], dtype)
