"""One training sample by its global number: its image decoded, one caption drawn, a broken image replaced.

A sample is a dictionary on its way through Grain: `sample_index`, `image_id`, `caption_index`, `caption`, `captions`,
`skipped` (broken images met) and, where images are wanted, `pixels` (and `squashed`). All that is drawn comes from the
generator that Grain hands over, which (seed, global number) decide.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import grain.python as grain
import numpy as np
from jaxtyping import UInt8

from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.shuffle import SampleOrder, derive_seed
from rococo_jax.errors import InputError

CAPTIONS_PER_IMAGE = ("one", "all")
ON_BROKEN_IMAGE = ("skip", "stop")


@dataclasses.dataclass(frozen=True)
class DrawSample(grain.RandomMapTransform):
    """From a global number to a sample.

    Attributes:
        source: the images and captions.
        order: which image stands at which position.
        preprocessing: how an image becomes pixels; None where no pixels are wanted (features may be known already).
        augmentation: what happens to an image before.
        captions_per_image: `one` draws a caption at random; `all` takes an image's captions in turn, in an order drawn
            anew each time that all of them have been taken.
        on_broken_image: `skip` replaces an image that cannot be decoded, `stop` raises its InputError.
    """

    source: PairSource
    order: SampleOrder
    preprocessing: Preprocessing | None
    augmentation: Augmentation
    captions_per_image: str
    on_broken_image: str

    def random_map(self, position: int, rng: np.random.Generator) -> dict[str, Any]:
        """The sample at a position.

        Raises:
            InputError: an image cannot be decoded and `on_broken_image` is `stop`, or no image of the source can.
        """
        drawn_caption, skipped = rng.random(), 0
        for image in self._candidates(position):
            try:
                sample = self.source[image]
                views = self._views(sample, rng)
            except InputError:
                if self.on_broken_image == "stop":
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
        """The image that stands at a position, then those that may take its place.

        Every place of a batch has substitutes of its own (the images whose number leaves the same remainder), and those
        that are in the batch already are left out, so that substitutes bring no image twice into a batch: not even
        where each process sees only its part of the batch. Where these run out any other image will do.
        """
        yield self.order.image(position)
        step, place = divmod(position, self.order.batch_size)
        in_batch = set(self.order.batch(step).tolist())
        own = range(place, self.order.images, self.order.batch_size)
        turn = derive_seed(self.order.seed, "substitutes", position) % max(len(own), 1)
        outside = (image for image in range(self.order.images) if image not in in_batch)
        yield from (image for image in (*own[turn:], *own[:turn]) if image not in in_batch)
        yield from outside
        yield from sorted(in_batch)

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
