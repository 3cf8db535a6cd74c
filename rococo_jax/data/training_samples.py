"""Make training samples by their global number, and batches of arrays from samples.

A sample is a dictionary: `sample_index`, `image_id`, `caption_index`, `caption`, `captions`, `skipped` (number of
images that could not be decoded) and, if pixels are requested, `pixels` and possibly `resized`. All random draws use
the generator that Grain passes, which depends on (seed, global number).

A batch has this process's share b of the global batch:

    pixels          uint8 (b, h, w, 3)    8 bits, normalised on the device; absent if no pixels are requested
    resized         uint8 (b, h, w, 3)    the images resized without a crop, if requested
    ids, text_mask  int32, bool (b, t)    the captions
    image_id        int32 (b,)            determines the positive pairs
    caption_index   int32 (b,)            the number of the caption among those of its image
    sample_index    int64 (b,)            the global number of the sample
    skipped_images  int32 ()              number of images that could not be decoded and were replaced
    cut_texts       int32 ()              number of captions and further texts that were cut to t tokens
    equal_altered_texts  int32 ()         number of altered texts with the tokens of their caption, which do not count

and, if a transform added the texts:

    altered_ids, altered_text_mask, altered_valid       (b, K, t), (b, K, t), (b, K)
    positive_ids, positive_text_mask, positive_valid    (b, t), (b, t), (b,)
    negative_ids, negative_text_mask, negative_valid    (b, N, t), (b, N, t), (b, N)

`valid` is False for a missing text, whose ids are those of the empty text, and for a text with the same tokens as the
caption, for example if the difference was cut off.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain.python as grain
import numpy as np
from jaxtyping import UInt8

from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.chunk_memory import SharedRows, allocate_rows
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.sample_order import SampleOrder, derive_seed
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError, naming_source, require_one_of

CAPTIONS_PER_IMAGE = ("one", "all")
ON_DECODE_ERROR = ("skip", "raise")
DECODE = ("exact", "draft")
VIEWS = {"pixels", "resized"}
Batch = dict[str, np.ndarray]
TEXT_FIELDS = {"altered_captions": "altered", "hard_positive": "positive", "hard_negatives": "negative"}


@dataclasses.dataclass(frozen=True)
class DrawSample(grain.RandomMapTransform):
    """Make the sample of a global number.

    Attributes:
        source: images and captions (`open_pairs`).
        order: the order of the images; its batch size is the global one.
        preprocessing: turns images into pixels; with None, samples have no pixels and no image is opened.
        augmentation: random crops and flips; none by default.
        captions_per_image: `one` caption, drawn at random for each sample, or `all` in turn.
        on_decode_error: `skip` replaces and counts images that cannot be decoded; `raise` raises the InputError when
            the batch is due.
        decode: `exact`, or `draft`: JPEGs at a half, quarter or eighth of their size where neither the image nor a
            random crop becomes smaller than what it is resized to.

    Raises InputError: a value of the last three is unknown.
    """

    source: PairSource
    order: SampleOrder
    preprocessing: Preprocessing | None
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)
    captions_per_image: str = "one"
    on_decode_error: str = "raise"
    decode: str = "exact"

    def __post_init__(self):
        allowed = {"captions_per_image": CAPTIONS_PER_IMAGE, "on_decode_error": ON_DECODE_ERROR, "decode": DECODE}
        for name, choices in allowed.items():
            require_one_of("training input", name, getattr(self, name), choices)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines which sample has which number, as JSON values."""
        about = {"captions_per_image": self.captions_per_image, "images": len(self.source), "data": self.source.hash()}
        return {**self.order.identity, **about}

    @property
    def bytes_of_views(self) -> int:
        """The size of a sample's pixels in bytes."""
        if self.preprocessing is None:
            return 0
        return (1 + self.augmentation.also_resized) * math.prod(self.preprocessing.pixel_shape)

    def random_map(self, position: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return the sample at a position.

        Raises InputError: its image, or with `skip` every image, cannot be decoded.
        """
        caption_draw, skipped = rng.random(), 0
        for image in self._image_and_substitutes(position):
            sample = self.source[image]  # unreadable files are not skipped: they may exist when the run is resumed
            try:
                views = self._views(sample, rng)
            except InputError:
                if self.on_decode_error == "raise":
                    raise
                skipped += 1
                continue
            caption = self._choose_caption(image, self.order.epoch(position), len(sample.captions), caption_draw)
            return {
                "sample_index": position,
                "image_id": image,
                "caption_index": caption,
                "caption": sample.captions[caption],
                "captions": sample.captions,
                "skipped": skipped,
                **views,
            }
        raise InputError("training data", "images", f"{skipped} images and none that can be decoded", "image files")

    def _image_and_substitutes(self, position: int) -> Iterator[int]:
        """Yield the image at a position, then its substitutes.

        The substitutes are the images in the same row of the epoch's other batches, so that no image is twice in a
        batch even if each process reads only its part of it, and then all images.
        """
        batch_size, steps = self.order.batch_size, self.order.steps_per_epoch
        step, row = divmod(position, batch_size)
        first_step = step - step % steps
        for offset in range(steps):
            yield self.order.image((first_step + (step + offset) % steps) * batch_size + row)
        yield from range(self.order.images)

    def _views(self, sample: PairSample, rng: np.random.Generator) -> dict[str, UInt8[np.ndarray, "height width 3"]]:
        if self.preprocessing is None:
            return {}
        with naming_source(sample.source):
            return self.augmentation.views(sample.open(self._least_size), self.preprocessing, rng)

    @property
    def _least_size(self) -> tuple[int, int] | None:
        """Width and height that a decoded image needs; None to decode it at full size."""
        if self.decode == "exact":
            return None
        resized = self.preprocessing.exact_size or (self.preprocessing.shortest_edge,)
        side = math.ceil(max(resized) / self.augmentation.smallest_crop)
        return side, side

    def _choose_caption(self, image: int, epoch: int, count: int, draw: float) -> int:
        if self.captions_per_image == "one":
            return int(draw * count)
        return _caption_order(self.order.seed, image, epoch // count, count)[epoch % count]


@functools.lru_cache(maxsize=4096)
def _caption_order(seed: int, image: int, cycle: int, count: int) -> tuple[int, ...]:
    """Return the order in which the captions of an image are used in one cycle."""
    rng = np.random.Generator(np.random.Philox(derive_seed(seed, "captions", image, cycle)))
    return tuple(rng.permutation(count).tolist())


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows of a batch. It is not a pytree, so that Grain pickles it without moving its arrays.

    Attributes:
        views: pixels, which worker processes have in shared buffers.
        arrays: all other arrays.
    """

    views: dict[str, np.ndarray | SharedRows]
    arrays: Batch


@dataclasses.dataclass(frozen=True)
class MakeChunk:
    """Stack samples to arrays; all texts are tokenised together and padded to `text_length` tokens.

    `text_fields` maps the key of further texts in a sample to the name of their arrays in the batch.
    """

    tokenizer: Tokenizer
    text_length: int
    text_fields: Mapping[str, str]

    def __call__(self, new_samples: Iterable[dict[str, Any]], rows: int) -> Chunk:
        """Return `rows` samples as arrays. Pixels are copied at once, while the CPU caches them."""
        samples, views, handles = [], {}, {}
        for row, sample in enumerate(new_samples):
            for name in VIEWS & sample.keys():
                view = sample.pop(name)
                if name not in views:
                    views[name], handles[name] = allocate_rows((rows, *view.shape))
                views[name][row] = view
            samples.append(sample)
        batch = {
            "image_id": _column(samples, "image_id", np.int32),
            "caption_index": _column(samples, "caption_index", np.int32),
            "sample_index": _column(samples, "sample_index", np.int64),
            "skipped_images": np.array(sum(sample["skipped"] for sample in samples), np.int32),
            "equal_altered_texts": np.array(0, np.int32),
        }
        batch |= self._tokenise("", [sample["caption"] for sample in samples])
        for key, name in self.text_fields.items():
            if key in samples[0]:
                valid = [sample[f"{name}_valid"] for sample in samples] if f"{name}_valid" in samples[0] else None
                texts = self._tokenise_nested(f"{name}_", [sample[key] for sample in samples], valid)
                if texts[f"{name}_valid"].ndim == 2:
                    are_twins = texts[f"{name}_valid"] & (texts[f"{name}_ids"] == batch["ids"][:, None]).all(axis=2)
                    texts[f"{name}_valid"] = texts[f"{name}_valid"] & ~are_twins
                    batch["equal_altered_texts"] += np.int32(are_twins.sum())
                texts["cut_texts"] = texts["cut_texts"] + batch["cut_texts"]
                batch |= texts
        return Chunk(handles, batch)

    def _tokenise_nested(self, prefix: str, texts: Sequence, valid: Sequence[np.ndarray] | None = None) -> Batch:
        """Return ids, mask and validity of texts, one or the same number per sample; None is a missing text."""
        nested = np.array(texts, dtype=object)
        if valid is None:
            valid = np.array([text is not None for text in nested.ravel()], np.bool_).reshape(nested.shape)
        else:
            valid = np.stack(valid)
        arrays = self._tokenise(prefix, ["" if text is None else text for text in nested.ravel()])
        arrays |= {key: array.reshape(*nested.shape, -1) for key, array in arrays.items() if array.ndim}
        return arrays | {f"{prefix}valid": valid}

    def _tokenise(self, prefix: str, texts: Sequence[str]) -> Batch:
        """Return ids and mask of texts, and the number of texts that were cut."""
        length = self.text_length
        rows, is_cut = self.tokenizer.encode_with_truncation(texts)
        # A text that is cut keeps its last id, which marks the end.
        cut_rows = [row if len(row) <= length else [*row[: length - 1], row[-1]] for row in rows]
        ids, mask = self.tokenizer.pad(cut_rows, length)
        count = sum(was_cut or len(row) > length for row, was_cut in zip(rows, is_cut, strict=True))
        return {f"{prefix}ids": ids, f"{prefix}text_mask": mask, "cut_texts": np.array(count, np.int32)}


def _column(samples: Sequence[Mapping[str, Any]], name: str, dtype: type) -> np.ndarray:
    return np.array([sample[name] for sample in samples], dtype)
