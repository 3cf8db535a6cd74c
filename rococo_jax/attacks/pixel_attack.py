"""Attack the images of a data set with a model of this project; see `pixels` for the method.

Images are attacked in groups: a fixed number for each device. The result of an image depends on no other image. Each
image has a record like that of a caption (`captions`): `tried` and `first` count gradient steps over all radii, and
`smallest` is the smallest radius of success. `beaten` says whether random search at the largest radius, with as many
steps, found more than the gradient did: on more than `MASKED` of the images, the gradient is likely to be masked.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, UInt8

from rococo_jax.attacks.pixels import (
    Best,
    PixelAttack,
    Target,
    apgd_stage,
    evaluator,
    margins,
    random_search,
    random_start,
    stages,
)
from rococo_jax.attacks.scoring import TIE
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.images import FileImages
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.device_steps import on_each_device, pad_rows
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.models.fsdp import merge_gathered
from rococo_jax.models.products import float32_products
from rococo_jax.runtime import AXES

# Share of images on which random search may beat the gradient.
MASKED = 0.05
_CPU_IMAGES, _ACCELERATOR_IMAGES = 8, 64


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _run(mesh, graph, preprocessing, products, settings, kind, state, original, is_true, keys, x, *best):
    """Run a stage of APGD (kind `stage`), draw its start, search at random, or compute margins, on each device."""
    norm, loss, scale = settings

    def run(state, original, is_true, keys, x, *best):
        parameters, texts, radius, length, limit, done = state
        with float32_products(products):
            model = merge_gathered(graph, parameters)

            def embed(pixels):
                return model.image_embeddings(preprocessing.normalise(pixels))

            if kind == "margins":
                return margins(embed(original) @ texts.T, is_true)
            if kind == "start":
                return random_start(keys, original, radius, norm)
            functions = evaluator(embed, Target(texts, is_true), original, radius, norm, loss, scale)
            if kind == "random":
                return random_search(functions[1], keys, original, radius, norm, limit)
            return apgd_stage(functions[0], x, original, Best(*best), radius, norm, length, limit, done)

    return on_each_device(mesh, run, state, original, is_true, keys, x, *best)


class PixelAttacker:
    """An encoder under attack, with its images and texts.

    Captions may be labels of classes, with `prompts`: the embedding of a label is then the mean of those of its
    prompts, brought to length 1.

    Raises InputError if the model is not one of this project with a fixed image size, or the loss needs more texts.
    """

    def __init__(
        self,
        model: LoadedModel,
        items: Sequence[CaptionedImage],
        files: Sequence[Any],
        attack: PixelAttack,
        prompts: Mapping[str, Sequence[str]] | None = None,
    ):
        if not isinstance(model, Encoder) or model.spec.vision is None or model.spec.text is None:
            raise InputError(model.name, "gradients", "none", "a model of this project with both towers, for pixels")
        if model.preprocessing is None or model.preprocessing.patch_size is not None:
            raise InputError(model.name, "preprocessing", "no fixed image size", "one image size, for pixels")
        self.model, self.items, self.attack = model, items, attack
        self.files = FileImages(tuple(map(str, files)), tuple(files))
        texts = list(dict.fromkeys(caption for item in items for caption in item.captions))
        self.row_of_text = {text: row for row, text in enumerate(texts)}
        if attack.loss == "dlr" and len(texts) < 3:
            raise InputError("captions", "texts", f"{len(texts)} different ones", "at least 3 for the loss dlr")
        for item in items:
            if len(set(item.captions)) == len(texts):
                found = f"only true ones of {item.image}"
                raise InputError("captions", "texts", found, "a wrong text for each image, for an attack on pixels")
        of_texts = [prompts[text] if prompts else [text] for text in texts]
        vectors = model.encode_text([prompt for each in of_texts for prompt in each]).astype(np.float64)
        means = [part.mean(axis=0) for part in np.split(vectors, np.cumsum(list(map(len, of_texts)))[:-1])]
        self.texts = jnp.asarray(np.stack(means) / np.linalg.norm(means, axis=1, keepdims=True), jnp.float32)
        on_cpu = model.mesh.devices.flat[0].platform == "cpu"
        self.group = (_CPU_IMAGES if on_cpu else _ACCELERATOR_IMAGES) * model.mesh.size

    def margins(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> Float[np.ndarray, " images"]:
        """Return the margin of images of the model's size, one for each item."""
        vectors = self.model.encode_image(list(images))
        similarities = jnp.asarray(vectors) @ self.texts.T
        return np.asarray(margins(similarities, jnp.asarray(self.is_true(range(len(images))))))

    def is_true(self, numbers: Sequence[int]) -> Bool[np.ndarray, "images texts"]:
        """Return which texts are captions of each image."""
        mask = np.zeros((len(numbers), len(self.row_of_text)), bool)
        for row, number in enumerate(numbers):
            mask[row, [self.row_of_text[caption] for caption in self.items[number].captions]] = True
        return mask

    def run(self, start: int = 0) -> Iterator[tuple[list[dict[str, Any]], list[UInt8[np.ndarray, "h w 3"]]]]:
        """Yield the records and the attacked images of each group of images, from image `start`."""
        for first in range(start, len(self.items), self.group):
            numbers = list(range(first, min(first + self.group, len(self.items))))
            originals = np.stack(list(self.files.read(numbers, self.model.prepare)))
            yield self._attack(numbers, originals)

    def _attack(self, numbers: list[int], originals: UInt8[np.ndarray, "b h w 3"]):
        attack, count = self.attack, len(numbers)
        sharding = NamedSharding(self.model.mesh, PartitionSpec(AXES))

        def place(rows: np.ndarray) -> jax.Array:
            return jax.device_put(pad_rows(rows, self.group), sharding)

        original, is_true = place(originals.astype(np.float32)), place(self.is_true(numbers))
        keys = jax.random.split(jax.random.key(attack.seed), len(self.items) * attack.restarts)
        keys = np.asarray(jax.random.key_data(keys)).reshape(attack.restarts, len(self.items), -1)[:, numbers]
        graph, parameters = self.model.graph_and_state()
        program = partial(_run, self.model.mesh, graph, self.model.preprocessing, self.model._products)
        losses = attack.loss.split("+")

        def call(kind: str, radius: float, restart: int, x: jax.Array, best: Best, *counts: int, loss: str = "") -> Any:
            settings = (attack.norm, loss, self.model.logit_scale)
            numbers = [jnp.int32(value) for value in counts or (0, 0, 0)]
            state = (parameters, self.texts, jnp.float32(radius * 255), *numbers)
            return program(settings, kind, state, original, is_true, place(keys[restart]), x, *best)

        best = Best(original, place(np.zeros(count, np.float32)), place(np.zeros(count, np.int32)))
        best = best._replace(margin=call("margins", 0.0, 0, original, best))
        right = np.asarray(best.margin)[:count] < -TIE
        smallest, tried = np.full(count, np.nan), 0
        for radius in attack.budgets:
            for restart, loss in itertools.product(range(attack.restarts), losses):
                x = call("start", radius, restart, original, best)
                for length, limit, done in stages(attack.steps):
                    if (np.asarray(best.margin)[:count] >= 0)[right].all():
                        break
                    x, best = call("stage", radius, restart, x, best, length, limit, tried + done, loss=loss)
                tried += attack.steps
            fooled = (np.asarray(best.margin)[:count] >= 0) & right
            smallest = np.where(np.isnan(smallest) & fooled, radius, smallest)
        by_gradient = np.asarray(best.margin)[:count]
        found = call(
            "random", attack.budgets[-1], 0, original, best, 0, attack.steps * attack.restarts * len(losses), 0
        )
        at_random = np.asarray(found.margin)[:count]
        beaten = right & (by_gradient < 0) & (at_random > by_gradient + TIE)
        smallest = np.where(beaten & (at_random >= 0), attack.budgets[-1], smallest)
        images = np.where(beaten[:, None, None, None], *(np.asarray(e.image)[:count] for e in (found, best)))
        records: list[dict[str, Any]] = [
            {
                "image": self.items[number].image, "right": bool(right[row]), "tried": tried, "complete": 0,
                "smallest": None if np.isnan(smallest[row]) else float(smallest[row]),
                "first": None if np.isnan(smallest[row]) else int(np.asarray(best.first)[row]) or tried,
                "margin": round(float(max(by_gradient[row], at_random[row] if beaten[row] else -np.inf)), 7),
                "beaten": bool(beaten[row]),
            }
            for row, number in enumerate(numbers)
        ]  # fmt: skip
        return records, list(images.astype(np.uint8))
