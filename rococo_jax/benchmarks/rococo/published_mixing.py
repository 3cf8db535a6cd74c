"""Mixed galleries with the pairs, boxes and bytes of the benchmark's published script.

The script resizes every image to 384 x 384 (bicubic, no crop), shuffles the images, splits them into batches of 64,
permutes each batch and mixes it with itself; `patch` draws one box per batch. Its random numbers are reproduced without
its library:

    shuffle       a first MT19937, seeded with `seed`, discards two draws; the second of the next two draws seeds
                  another MT19937, which permutes all images
    permutations  each batch takes its permutation from the first MT19937
    permutation   for i in 0..n-2: swap(i, i + next % (n - i))
    boxes         NumPy's legacy generator seeded with `seed`, row then column of the centre, once per batch

Protocols: `paper` as published, compressed as JPEG; `strict` without self-mixing and compression; `control` the same
images unmixed (ratio 1), but resized and compressed, which separates the effect of preprocessing.

`make_plan` returns the pairs and boxes for a list of images, a method, a ratio, a seed and a protocol; `mix_place`
computes one mixed image.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from rococo_jax.data.pictures import Alpha, as_rgb, decode_image, image_bytes
from rococo_jax.errors import InputError, is_whole
from rococo_jax.perturb.images.mixing import apply_mixing, check_method, check_ratio, clip_boxes

SIDE = 384
BATCH = 64
PROTOCOLS = ("paper", "strict", "control")


@dataclass(frozen=True)
class MixingPlan:
    """Pairs and boxes of a mixed gallery, known before any image is opened.

    Attributes:
        images: names, in the order of the captions file.
        method, ratio, seed, protocol: settings. `ratio` is 1 for `control`.
        first: index into `images` of the image that each mixed image is named after, in the order of the script.
        partner: index into `images` of the image that is mixed into it.
        batch: number of its batch.
        boxes: rows x1 to x2 and columns y1 to y2 of the partner, one box per batch; zeros for `mix`.
        true_ratio: share of the image's own content after the box is clipped at the border.
    """

    images: tuple[str, ...]
    method: str
    ratio: float
    seed: int
    protocol: str
    first: Int[np.ndarray, " images"]
    partner: Int[np.ndarray, " images"]
    batch: Int[np.ndarray, " images"]
    boxes: Int[np.ndarray, "batches 4"]
    true_ratio: Float[np.ndarray, " images"]

    @property
    def variant(self) -> str:
        """Name in results: `mix_0.9`, `patch_0.9`, `control`."""
        return "control" if self.protocol == "control" else f"{self.method}_{self.ratio:.10g}"

    @property
    def self_mixed(self) -> int:
        """Number of images that are mixed with themselves."""
        return int((self.first == self.partner).sum())

    @property
    def compressed(self) -> bool:
        """True if mixed images are compressed as JPEG."""
        return self.protocol != "strict"

    @property
    def alpha(self) -> Alpha:
        """Treatment of transparency: dropped as in the script, or on white as in all other alterations."""
        return "dropped" if self.compressed else "white"


def make_plan(
    images: Sequence[str], method: str = "mix", ratio: float = 0.9, seed: int = 1, protocol: str = "paper"
) -> MixingPlan:
    """Return pairs, batches, boxes and true shares for these images.

    Raises InputError: there are no images, only one under `strict`, or an argument is out of range.
    """
    check_method(method)
    check_ratio(ratio)
    if protocol not in PROTOCOLS:
        raise InputError("mixing", "protocol", repr(protocol), ", ".join(PROTOCOLS))
    if not is_whole(seed) or not 0 <= seed < 2**32:
        raise InputError("mixing", "seed", seed, "a whole number from 0 to 4294967295")
    count = len(images)
    if count == 0 or (protocol == "strict" and count == 1):
        raise InputError("mixing", "images", count, "at least two images to mix")
    ratio = 1.0 if protocol == "control" else float(ratio)

    first, places = draw_pairs(count, seed)
    batch = np.arange(count) // BATCH
    if protocol == "strict":
        if count % BATCH == 1:
            batch[-1] = batch[-2]
        places = remove_fixed_points(places, batch)
    batches = int(batch[-1]) + 1
    boxes = np.zeros((batches, 4), np.int64)
    if method == "patch":
        boxes = draw_published_boxes(batches, ratio, seed)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / SIDE**2
    true_ratio = np.full(count, ratio) if method == "mix" else 1 - area[batch]
    return MixingPlan(tuple(images), method, ratio, seed, protocol, first, first[places], batch, boxes, true_ratio)


def raw_stream(seed: int) -> Callable[[int], Int[np.ndarray, " draws"]]:
    """Return a function whose call `stream(n)` returns the next n 32-bit outputs of MT19937."""
    generator = np.random.RandomState(seed)
    return lambda count: generator.randint(0, 2**32, count, dtype=np.uint32).astype(np.int64)


def draw_permutation(stream: Callable[[int], np.ndarray], count: int) -> Int[np.ndarray, " count"]:
    """Return the generator's permutation of `count`, which uses count - 1 draws."""
    permutation = np.arange(count)
    for place, draw in enumerate(stream(count - 1)):
        other = place + int(draw) % (count - place)
        permutation[place], permutation[other] = permutation[other], permutation[place]
    return permutation


def draw_pairs(count: int, seed: int) -> tuple[Int[np.ndarray, " count"], Int[np.ndarray, " count"]]:
    """Return the shuffled images, and for each position of that list the position of its partner (in its batch)."""
    stream = raw_stream(seed)
    stream(2)
    shuffle_seed = int(stream(2)[1])
    shuffled = draw_permutation(raw_stream(shuffle_seed), count)
    places = [start + draw_permutation(stream, min(BATCH, count - start)) for start in range(0, count, BATCH)]
    return shuffled, np.concatenate(places)


def remove_fixed_points(
    places: Int[np.ndarray, " count"], batch: Int[np.ndarray, " count"]
) -> Int[np.ndarray, " count"]:
    """Change a permutation as little as possible so that it has no fixed point.

    In each batch the fixed points pass their partners on in a circle; a single one swaps partners with its neighbour.
    All other pairs stay as published, so `paper` and `strict` have no other differences.
    """
    places = places.copy()
    for number in range(int(batch[-1]) + 1):
        members = np.flatnonzero(batch == number)
        fixed = members[places[members] == members]
        if len(fixed) == 1:
            neighbour = members[(np.searchsorted(members, fixed[0]) + 1) % len(members)]
            fixed = np.array([fixed[0], neighbour])
        places[fixed] = np.roll(places[fixed], -1)
    return places


def draw_published_boxes(batches: int, ratio: float, seed: int) -> Int[np.ndarray, "batches 4"]:
    """Return a clipped box (x1, y1, x2, y2) for each batch, with sides int(384 sqrt(1 - ratio))."""
    centres = np.random.RandomState(seed).randint(SIDE, size=(batches, 2))
    cut = int(SIDE * np.sqrt(1.0 - ratio))
    boxes = clip_boxes(jnp.asarray(centres), jnp.full((batches, 2), cut), jnp.full(2, SIDE))
    return np.asarray(boxes, np.int64)


def resize_to_square(image: Image.Image, alpha: Alpha = "dropped") -> UInt8[np.ndarray, "384 384 3"]:
    """Convert to RGB, by default as the script does, and resize to 384 x 384 with Pillow's bicubic filter (8 bit)."""
    return np.asarray(as_rgb(image, alpha).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def mix_pair(
    plan: MixingPlan, place: int, image: UInt8[np.ndarray, "384 384 3"], partner: UInt8[np.ndarray, "384 384 3"]
) -> UInt8[np.ndarray, "384 384 3"]:
    """Return the mixed image at a position of the plan, before JPEG.

    A patch copies a box of the partner; a blend looks up the mixed byte of every pair of bytes.
    """
    if plan.method == "patch" and plan.protocol != "control":
        x1, y1, x2, y2 = plan.boxes[plan.batch[place]].tolist()
        mixed = image.copy()
        mixed[x1:x2, y1:y2] = partner[x1:x2, y1:y2]
        return mixed
    pairs = image.astype(np.uint16)
    pairs <<= 8
    pairs |= partner
    return _mixed_bytes(plan.ratio).take(pairs)


@functools.cache
def _mixed_bytes(ratio: float) -> UInt8[np.ndarray, "65536"]:
    """Return the mixed byte of all pairs of bytes; the image's own byte is the high one."""
    high_byte, low_byte = np.divmod(np.arange(65536).reshape(1, 256, 256, 1), 256)
    pair = jnp.asarray(np.concatenate([high_byte, low_byte]), jnp.uint8)
    mixed = apply_mixing(pair, jnp.array([1, 0]), ratio, jnp.zeros((2, 4), jnp.int32), "mix")
    return np.asarray(mixed.images)[0].ravel()


def encode_jpeg(image: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """Return the bytes that the script's `save` writes: JPEG at Pillow's default quality."""
    return image_bytes(image, "JPEG")


def decode_jpeg(encoded: bytes) -> UInt8[np.ndarray, "height width 3"]:
    """RGB pixels of JPEG bytes."""
    return np.asarray(as_rgb(decode_image(encoded, "JPEG")))


def mix_place(plan: MixingPlan, place: int, squashed: Callable[[int], np.ndarray]) -> UInt8[np.ndarray, "384 384 3"]:
    """The mixed image at `place`, as an encoder sees it; `squashed` gives an image by its index into `plan.images`.

    Under `paper` and `control` it has been through JPEG, exactly as if it had been saved and read again.
    """
    mixed = mix_pair(plan, place, squashed(int(plan.first[place])), squashed(int(plan.partner[place])))
    return decode_jpeg(encode_jpeg(mixed)) if plan.compressed else mixed


def plan_batches(plan: MixingPlan) -> list[Int[np.ndarray, " batch"]]:
    """The places of the plan, cut into its batches."""
    return np.split(np.arange(len(plan.images)), np.flatnonzero(np.diff(plan.batch)) + 1)
