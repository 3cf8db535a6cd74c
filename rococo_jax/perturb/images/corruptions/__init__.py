"""The nineteen corruptions of ImageNet-C by name, jitted, batched and sharded: (uint8 images, severity, key) -> uint8.

Source: Hendrycks & Dietterich 2019 (arXiv 1903.12261): fifteen kinds and four more for validation, five severities, as
the authors' code (hendrycks/robustness) computes them, but for frost, whose texture is drawn [ours]. The package
`imagecorruptions` has another elastic transform, snow and frost. docs/reference/corruptions.md lists what differs.

The constants were chosen for images of 224 pixels. At other sizes noise and colour do not depend on the size; blurs,
flakes and drops are in pixels, so relatively smaller on larger images; elastic warping, pixelation, zoom and fog follow
the size.

The random part of a corruption depends on the key and the image's id only: not on the rest of the batch, the image's
place in it, or the number of devices. Every image runs through the same compiled program, a fixed number at a time.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Integer, Key, UInt8

from rococo_jax.errors import InputError, is_whole, unknown_name
from rococo_jax.perturb.images.corruptions import blur, digital, noise, weather
from rococo_jax.runtime import AXES

SEVERITIES = (1, 2, 3, 4, 5)
LEAST_SIDE = 32
# Version of the pixels that a kind, a severity and a key produce. Results and embeddings of two versions never mix.
DEFINITION_VERSION = 2
_AT_A_TIME_ON_ACCELERATORS = 16
# The compiler inlines a loop with a single iteration: its body is fused with the surrounding code and rounded
# differently, which changes one value in ten thousand by 1. Hence at least two iterations, the second possibly skipped.
_MIN_RUNS = 2


@dataclass(frozen=True)
class Corruption:
    """Kind of corruption.

    Attributes:
        name: its name in ImageNet-C.
        group: noise, blur, weather or digital.
        apply: (image, severity, draws) -> image, for one image; on the host (image, severity) -> image in NumPy.
        draw: (key, height, width, severity) -> the random part for one image; None if there is none.
        on_host: whether a codec on the host computes it, not the device.
        extra: whether it is one of the four kinds that ImageNet-C reserves for validation.
    """

    name: str
    group: str
    apply: Callable[..., Any]
    draw: Callable[..., Any] | None = None
    on_host: bool = False
    extra: bool = False

    @property
    def at_a_time(self) -> int:
        """Number of images that a device computes at once, for any batch size."""
        return 1 if self.on_host or jax.default_backend() == "cpu" else _AT_A_TIME_ON_ACCELERATORS

    def __call__(
        self,
        images: UInt8[Array | np.ndarray, "batch height width 3"],
        severity: int,
        key: Key[Array, ""],
        *,
        ids: Integer[Array | np.ndarray, " batch"] | None = None,
        mesh: Mesh | None = None,
    ) -> UInt8[Array, "batch height width 3"]:
        """Corrupt a batch of any size, split over all axes of the mesh.

        `ids` are distinct numbers of the images, by default 0, 1, ... Raises InputError for a severity other than 1 to
        5, images under 32 pixels, and anything but a batch of RGB bytes.
        """
        check_severity(severity)
        check_images(images, self.name)
        count = len(images)
        if self.on_host:
            with ThreadPoolExecutor(thread_name_prefix=self.name) as pool:
                corrupted = pool.map(lambda image: self.apply(image, severity), np.asarray(images))
                return jnp.asarray(np.stack(list(corrupted)))
        ids = np.arange(count) if ids is None else np.asarray(ids)
        devices = 1 if mesh is None else mesh.size
        runs = max(_MIN_RUNS, -(-count // (self.at_a_time * devices)))  # for each device
        missing = runs * self.at_a_time * devices - count
        if missing:
            images = jnp.pad(jnp.asarray(images), ((0, missing), (0, 0), (0, 0), (0, 0)))
            ids = np.pad(ids, (0, missing))
        n_steps = np.int32(min(runs, -(-count // self.at_a_time)))
        program = _program(self.name, severity, self.at_a_time, mesh)
        corrupted = program(jnp.asarray(images), key, jnp.asarray(ids, jnp.uint32), n_steps)
        return corrupted[:count] if missing else corrupted


@functools.cache
def _program(name: str, severity: int, at_a_time: int, mesh: Mesh | None) -> Callable[..., Array]:
    """Return the jitted program of a kind and severity, on a mesh or one device; its loop has `n_steps` iterations."""
    kind = CORRUPTIONS[name]

    def corrupt_image(image: Array, key: Array, image_id: Array) -> Array:
        if kind.draw is None:
            return kind.apply(image, severity, None)
        draws = kind.draw(jax.random.fold_in(key, image_id), image.shape[0], image.shape[1], severity)
        return kind.apply(image, severity, draws)

    def corrupt_images(images: Array, key: Array, ids: Array, n_steps: Array) -> Array:
        groups = images.reshape(-1, at_a_time, *images.shape[1:])
        if at_a_time == 1 and kind.group == "noise":
            # Flat rows for noise, because a loop over a last axis of three channels is not vectorised (7 times slower).
            groups = images.reshape(len(images), 1, -1)
        ids = ids.reshape(-1, at_a_time)

        def step(number: Array, groups: Array) -> Array:
            group = jax.lax.dynamic_index_in_dim(groups, number, keepdims=False)
            group_ids = jax.lax.dynamic_index_in_dim(ids, number, keepdims=False)
            group = group.reshape(at_a_time, *images.shape[1:])
            if at_a_time == 1:
                corrupted = corrupt_image(group[0], key, group_ids[0])
            else:
                corrupted = jax.vmap(corrupt_image, (0, None, 0))(group, key, group_ids)
            return jax.lax.dynamic_update_index_in_dim(groups, corrupted.reshape(groups.shape[1:]), number, 0)

        return jax.lax.fori_loop(0, n_steps, step, groups).reshape(images.shape)

    if mesh is None:
        return jax.jit(corrupt_images)
    split, replicated = PartitionSpec(AXES), PartitionSpec()
    in_specs = (split, replicated, split, replicated)
    return jax.jit(jax.shard_map(corrupt_images, mesh=mesh, in_specs=in_specs, out_specs=split))


CORRUPTIONS: dict[str, Corruption] = {
    kind.name: kind
    for kind in (
        Corruption("gaussian_noise", "noise", noise.gaussian_noise, noise.draw_normal),
        Corruption("shot_noise", "noise", noise.shot_noise, noise.draw_uniform),
        Corruption("impulse_noise", "noise", noise.impulse_noise, noise.draw_uniform),
        Corruption("defocus_blur", "blur", blur.defocus_blur),
        Corruption("glass_blur", "blur", blur.glass_blur, blur.draw_glass),
        Corruption("motion_blur", "blur", blur.motion_blurred, blur.draw_motion),
        Corruption("zoom_blur", "blur", blur.zoom_blur),
        Corruption("snow", "weather", weather.snow, weather.draw_snow),
        Corruption("frost", "weather", weather.frost, weather.draw_frost),
        Corruption("fog", "weather", weather.fog, weather.draw_fog),
        Corruption("brightness", "weather", digital.brightness),
        Corruption("contrast", "digital", digital.contrast),
        Corruption("elastic_transform", "digital", digital.elastic_transform, digital.draw_elastic),
        Corruption("pixelate", "digital", digital.pixelate),
        Corruption("jpeg_compression", "digital", digital.jpeg_compression, on_host=True),
        Corruption("speckle_noise", "noise", noise.speckle_noise, noise.draw_normal, extra=True),
        Corruption("gaussian_blur", "blur", blur.gaussian_blur, extra=True),
        Corruption("spatter", "weather", weather.spatter, weather.draw_spatter, extra=True),
        Corruption("saturate", "digital", digital.saturate, extra=True),
    )
}


def find_corruption(name: str) -> Corruption:
    """Return the corruption of a name. Raises InputError with the nearest name if there is none."""
    if name in CORRUPTIONS:
        return CORRUPTIONS[name]
    raise unknown_name("corruption", "name", name, CORRUPTIONS, "rococo corrupt-images --help")


def check_severity(severity: Any) -> None:
    """Raise InputError unless `severity` is 1, 2, 3, 4 or 5."""
    if not (is_whole(severity) or isinstance(severity, np.integer)) or severity not in SEVERITIES:
        raise InputError("corruption", "severity", severity, "a whole number from 1 to 5")


def check_images(images: Any, source: str = "corruption") -> None:
    """Raise InputError unless `images` is a uint8 RGB batch, all sides of at least 32 pixels.

    Pixels from 0 to 1 are refused, because every formula would make them black.
    """
    shape, dtype = getattr(images, "shape", None), getattr(images, "dtype", None)
    if shape is None or len(shape) != 4 or shape[-1] != 3 or dtype != np.uint8:
        problem = type(images).__name__ if shape is None else f"{dtype} of shape {tuple(shape)}"
        raise InputError(source, "images", problem, "uint8 of shape (batch, height, width, 3), all of one size")
    if min(shape[1:3]) < LEAST_SIDE:
        raise InputError(source, "image size", f"{shape[1]} x {shape[2]}", f"at least {LEAST_SIDE} pixels a side")
