"""Makes training samples by their global number, and batches of arrays from samples.

A sample is a dictionary: `sample_index`, `image_id`, `caption_index`, `caption`, `captions`, `skipped` (number of
images that could not be decoded) and, where images are wanted, `pixels` (and `resized`). All draws come from the
generator that Grain passes, which (seed, global number) decide.

A batch holds this process's share b of the global batch:

    pixels          uint8 (b, h, w, 3)    8 bit, normalised on the device; absent where no pixels are wanted
    resized         uint8 (b, h, w, 3)    the whole images, resized; where they are wanted
    ids, text_mask  int32, bool (b, t)    the captions
    image_id        int32 (b,)            decides which pairs are positives
    caption_index   int32 (b,)            which of its image's captions
    sample_index    int64 (b,)            the sample's global number
    skipped_images  int32 ()              images that could not be decoded and were replaced
    cut_texts       int32 ()              captions and further texts that are longer than t tokens, and were cut
    twin_texts      int32 ()              altered texts with the tokens of their caption, which do not count

and, where a transform added the texts:

    altered_ids, altered_text_mask, altered_valid       (b, K, t), (b, K, t), (b, K)
    positive_ids, positive_text_mask, positive_valid    (b, t), (b, t), (b,)
    negative_ids, negative_text_mask, negative_valid    (b, N, t), (b, N, t), (b, N)

Where `valid` is False there is no text, and the ids are those of the empty text; or, where a sample has several, its
tokens are those of the caption, as when both were cut.
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
from rococo_jax.errors import InputError

CAPTIONS_PER_IMAGE = ("one", "all")
ON_DECODE_ERROR = ("skip", "raise")
VIEWS = {"pixels", "resized"}
Batch = dict[str, np.ndarray]
TEXT_FIELDS = {"altered_captions": "altered", "hard_positive": "positive", "hard_negatives": "negative"}


@dataclasses.dataclass(frozen=True)
class DrawSample(grain.RandomMapTransform):
    """Makes the sample of a global number. Raises InputError: a choice is unknown.

    Attributes:
        source: images and captions (`open_pairs`).
        order: of the images; its batch size is the global one.
        preprocessing: how images become pixels; None leaves out the pixels and opens no image.
        augmentation: random crops and flips; none by default.
        captions_per_image: `one` caption, drawn at random for each sample, or `all` in turn.
        on_decode_error: `skip` replaces and counts images that cannot be decoded; `raise` raises the InputError when
            the batch is due.
    """

    source: PairSource
    order: SampleOrder
    preprocessing: Preprocessing | None
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)
    captions_per_image: str = "one"
    on_decode_error: str = "raise"

    def __post_init__(self):
        for name, choices in (("captions_per_image", CAPTIONS_PER_IMAGE), ("on_decode_error", ON_DECODE_ERROR)):
            if (value := getattr(self, name)) not in choices:
                raise InputError("training input", name, repr(value), f"one of {', '.join(choices)}")

    @property
    def identity(self) -> dict[str, Any]:
        """What decides which sample has which number, as JSON values."""
        about = {"captions_per_image": self.captions_per_image, "images": len(self.source), "data": self.source.hash()}
        return {**self.order.identity, **about}

    @property
    def bytes_of_views(self) -> int:
        """Bytes of the pixels of a sample."""
        if self.preprocessing is None:
            return 0
        return (1 + self.augmentation.also_resized) * math.prod(self.preprocessing.pixel_shape)

    def random_map(self, position: int, rng: np.random.Generator) -> dict[str, Any]:
        """The sample at a position. Raises InputError where its image, or with `skip` every image, cannot
        be decoded.
        """
        drawn_caption, skipped = rng.random(), 0
        for image in self._candidates(position):
            sample = self.source[image]  # what cannot be read is not skipped: it may be there when the run is resumed
            try:
                views = self._views(sample, rng)
            except InputError:
                if self.on_decode_error == "raise":
                    raise
                skipped += 1
                continue
            which = self._caption(image, self.order.epoch(position), len(sample.captions), drawn_caption)
            return {
                "sample_index": position,
                "image_id": image,
                "caption_index": which,
                "caption": sample.captions[which],
                "captions": sample.captions,
                "skipped": skipped,
                **views,
            }
        raise InputError("training data", "images", f"{skipped} images and none that can be decoded", "image files")

    def _candidates(self, position: int) -> Iterator[int]:
        """Yields the image at a position, then its substitutes.

        These are the images at the same place of the epoch's other batches, so that no image is twice in a batch, even
        where each process reads only its part of it; and after them all images.
        """
        size, steps = self.order.batch_size, self.order.steps_per_epoch
        step, place = divmod(position, size)
        for later in range(steps):
            yield self.order.image((step - step % steps + (step + later) % steps) * size + place)
        yield from range(self.order.images)

    def _views(self, sample: PairSample, rng: np.random.Generator) -> dict[str, UInt8[np.ndarray, "height width 3"]]:
        if self.preprocessing is None:
            return {}
        try:
            return self.augmentation.views(sample.open(), self.preprocessing, rng)
        except InputError as error:
            raise InputError(sample.source, error.field, error.found, error.wanted) from None

    def _caption(self, image: int, epoch: int, count: int, drawn: float) -> int:
        if self.captions_per_image == "one":
            return int(drawn * count)
        return _turn(self.order.seed, image, epoch // count, count)[epoch % count]


@functools.lru_cache(maxsize=4096)
def _turn(seed: int, image: int, cycle: int, count: int) -> tuple[int, ...]:
    """The order in which an image's captions are taken in one cycle."""
    rng = np.random.Generator(np.random.Philox(derive_seed(seed, "captions", image, cycle)))
    return tuple(rng.permutation(count).tolist())


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows of a batch. No tree to JAX and Grain, so that Grain pickles it and leaves its arrays where they are.

    Attributes:
        views: images, which a worker process has in slots.
        arrays: all others.
    """

    views: dict[str, np.ndarray | SharedRows]
    arrays: Batch


@dataclasses.dataclass(frozen=True)
class MakeChunk:
    """Stacks samples to arrays; all texts are tokenised together and padded to `text_length` tokens.

    `text_fields` maps the key of further texts in a sample to the name of their arrays in the batch.
    """

    tokenizer: Tokenizer
    text_length: int
    text_fields: Mapping[str, str]

    def __call__(self, made: Iterable[dict[str, Any]], rows: int) -> Chunk:
        """So many samples as arrays. Each view is copied as soon as its sample is made, while a cache holds it."""
        samples, views, sent = [], {}, {}
        for row, sample in enumerate(made):
            for name in VIEWS & sample.keys():
                view = sample.pop(name)
                if name not in views:
                    views[name], sent[name] = allocate_rows((rows, *view.shape))
                views[name][row] = view
            samples.append(sample)
        batch = {
            "image_id": _column(samples, "image_id", np.int32),
            "caption_index": _column(samples, "caption_index", np.int32),
            "sample_index": _column(samples, "sample_index", np.int64),
            "skipped_images": np.array(sum(sample["skipped"] for sample in samples), np.int32),
            "twin_texts": np.array(0, np.int32),
        }
        batch |= self._tokenise("", [sample["caption"] for sample in samples])
        for key, name in self.text_fields.items():
            if key in samples[0]:
                valid = [sample[f"{name}_valid"] for sample in samples] if f"{name}_valid" in samples[0] else None
                more = self._texts(f"{name}_", [sample[key] for sample in samples], valid)
                if more[f"{name}_valid"].ndim == 2:
                    twins = more[f"{name}_valid"] & (more[f"{name}_ids"] == batch["ids"][:, None]).all(axis=2)
                    more[f"{name}_valid"] = more[f"{name}_valid"] & ~twins
                    batch["twin_texts"] += np.int32(twins.sum())
                more["cut_texts"] = more["cut_texts"] + batch["cut_texts"]
                batch |= more
        return Chunk(sent, batch)

    def _texts(self, name: str, texts: Sequence, valid: Sequence[np.ndarray] | None = None) -> Batch:
        """Ids, mask and validity of texts, one or equally many a sample; None is a missing text."""
        nested = np.array(texts, dtype=object)
        if valid is None:
            valid = np.array([text is not None for text in nested.ravel()], np.bool_).reshape(nested.shape)
        else:
            valid = np.stack(valid)
        made = self._tokenise(name, ["" if text is None else text for text in nested.ravel()])
        made |= {key: each.reshape(*nested.shape, -1) for key, each in made.items() if each.ndim}
        return made | {f"{name}valid": valid}

    def _tokenise(self, name: str, texts: Sequence[str]) -> Batch:
        """Ids and mask of texts, and how many were cut."""
        most, (rows, cut) = self.text_length, self.tokenizer.encode_with_truncation(texts)
        # A text that is cut keeps its last id, which ends it.
        ids, mask = self.tokenizer.pad([row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows], most)
        count = sum(was_cut or len(row) > most for row, was_cut in zip(rows, cut, strict=True))
        return {f"{name}ids": ids, f"{name}text_mask": mask, "cut_texts": np.array(count, np.int32)}


def _column(samples: Sequence[Mapping[str, Any]], name: str, dtype: type) -> np.ndarray:
    return np.array([sample[name] for sample in samples], dtype)
