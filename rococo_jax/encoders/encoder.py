"""A loaded model as users hold it: `encode_image` and `encode_text` give unit vectors in float32.

The module inside is a pure function of its parameters; this class adds what surrounds it: preprocessing, tokenizer,
batches of one static shape, and the mesh. A model whose weights are changed in place is computed, and identified, with
the weights that it has when a method is called. A vector depends neither on the batch size of the call nor on the other
items, their order, or the number of devices: every device always runs the same program on the same number of rows
(`device_steps`).
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float
from PIL import Image

from rococo_jax.data.pixel_cache import PixelView
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer, TokenRows
from rococo_jax.encoders import programs
from rococo_jax.encoders.device_steps import STEPS_UNDER_WAY, BatchFeatures, DeviceSteps, Rows
from rococo_jax.encoders.matching import MatchingHead
from rococo_jax.encoders.placed_model import PlacedModel
from rococo_jax.encoders.programs import (
    Compute,
    as_pixels,
    bucket_length,
    free_bytes,
    images_at_once,
    largest_unit,
    text_batches,
    text_tokens_at_once,
    token_ids,
)
from rococo_jax.encoders.protocol import FeatureEncoder
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder
from rococo_jax.models.products import Products
from rococo_jax.runtime import AXES, make_mesh
from rococo_jax.storage import hash_json


class Encoder(FeatureEncoder, MatchingHead):
    """A dual encoder (or a single tower) with its preprocessing and tokenizer, placed on a mesh.

    Attributes:
        model: the `DualEncoder` module.
        preprocessing: how images become pixels; None for a text tower.
        tokenizer: how strings become token ids; None for an image tower.
        provenance: where the weights came from, and the hash that was written down with them; no part of the identity.
        name: what reports call it.
        mesh: the devices it runs on; parameters are sharded over its axis `fsdp`.
    """

    def __init__(
        self,
        model: DualEncoder,
        preprocessing: Preprocessing | None,
        tokenizer: Tokenizer | None,
        provenance: dict[str, Any] | None = None,
        name: str = "model",
        mesh: Mesh | None = None,
    ):
        self.preprocessing, self.tokenizer = preprocessing, tokenizer
        self.provenance, self.name = dict(provenance or {}), name
        self.mesh = make_mesh() if mesh is None else mesh
        self._placed = PlacedModel.place(model, self.mesh)
        self.model = self._placed.model
        platform = self.mesh.devices.flat[0].platform
        self._image_rows, self._images_fit = images_at_once(self.spec, platform), False
        self._tokens = text_tokens_at_once(self.spec, platform)
        self.steps = DeviceSteps(self.name, self.mesh, self._on_halved)
        self.compute = Compute("bfloat16" if model.dtype == jnp.bfloat16 else "float32")

    def _current(self) -> PlacedModel:
        """Return the model on the mesh, placed anew where it was changed since."""
        if not self._placed.is_of(self.model):
            self._placed = PlacedModel.place(self.model, self.mesh)
            self.model = self._placed.model
        return self._placed

    @property
    def _graph(self) -> Any:
        return self._current().graph

    @property
    def _state(self) -> Any:
        return self._current().state

    @property
    def weights_sha256(self) -> str:
        """The hash of the weights as they are now. All processes must ask for it where parameters are sharded over
        several."""
        return self._current().hash()

    def remember_hash(self, sha256: str) -> None:
        """Take the hash of the weights from a caller that has just computed it from them."""
        self._placed.hashes[""] = sha256

    @property
    def spec(self):
        """The `ModelSpec` of the module."""
        return self.model.spec

    def use(self, compute: Compute) -> None:
        """Computes as chosen from here on, in the dtype that the module was built in."""
        if jnp.dtype(compute.dtype) != jnp.dtype(self.model.dtype):
            raise ValueError(f"{compute.precision} for a model in {jnp.dtype(self.model.dtype).name}")
        self.compute, self._images_fit = compute, False
        self._image_rows = compute.images_at_once or self._image_rows

    def describe(self) -> dict[str, Any]:
        """Return the name and everything that decides an embedding, as JSON: hash of the weights as they are now,
        architecture, preprocessing, hash of the tokenizer, dtype, and the precision of float32 products where it is not
        the highest.
        """
        about = {
            "name": self.name,
            "weights": self.weights_sha256,
            "spec": self.spec.to_json(),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_json(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.hash(),
            "dtype": jnp.dtype(self.model.dtype).name,
        }
        return about | ({"precision": "high"} if self.compute.precision == "high" else {})

    def fingerprint(self) -> str:
        """Return a hash of `describe` without the name."""
        return hash_json({key: value for key, value in self.describe().items() if key != "name"})

    def prepare(self, image: Image.Image) -> np.ndarray:
        """The image resized and cropped as the model wants it, uint8.

        Raises InputError: the model has no image tower or no preprocessing, or the image is too narrow.
        """
        self._require_images()
        return self.preprocessing.resize(image)

    @property
    def pixel_view(self) -> PixelView | None:
        """`prepare` with its key, by which pixels are kept; None without an image tower."""
        return self.preprocessing and self.preprocessing.pixel_view

    def facts(self) -> dict[str, Any]:
        """Provenance, size, cost, and what to look at twice; decides no figure that the fingerprint does not hold."""
        from rococo_jax.encoders.inspection import inspect_model

        facts = inspect_model(self)
        told = ("provenance", "weights_sha256", "embedding_dimensions", "parameters", "flops", "warnings")
        preprocessing = self.preprocessing and self.preprocessing.describe()
        tokenizer = self.tokenizer and self.tokenizer.spec.to_json()
        return {**{key: facts[key] for key in told}, "preprocessing": preprocessing, "tokenizer": tokenizer}

    def describe_tower(self, side: str) -> dict[str, Any]:
        """Return everything that decides a feature of one tower (`vision` or `text`), without the heads: models that
        share a tower and differ in what was trained on top of it agree here."""
        about = self.describe()
        before = "preprocessing" if side == "vision" else "tokenizer"
        kept = {before: about[before], "dtype": about["dtype"], "spec": about["spec"][side]}
        kept |= {"precision": about["precision"]} if "precision" in about else {}
        if side == "vision" and self.compute.images_at_once is not None:
            kept["images_at_once"] = self.compute.images_at_once  # decides the last bits
        return {"weights": self._current().hash(f"{side}."), **kept}

    @property
    def logit_scale(self) -> float:
        """The factor on cosines by which the model was trained to tell right from wrong."""
        return float(np.exp(np.asarray(self.model.logit_scale[...], np.float64)))

    @property
    def _products(self) -> Products:
        return self.compute.products_on(self.mesh.devices.flat[0])

    @property
    def images_at_once(self) -> int:
        """How many images all devices encode in one step."""
        return self._image_rows * self.mesh.size

    def image_batches(self, images) -> Iterator[BatchFeatures]:
        """Places among the images and pooled features of the image tower before the head, batch by batch.

        Args:
            images: a sequence of PIL images, or of arrays of whole numbers from 0 to 255, `(h, w, 3)` of any size
                (`as_8bit`), all resized and cropped as the model wants; float arrays of the model's size are
                normalised already. One array `(n, h, w, 3)` is a sequence of them.

        Raises:
            InputError: the model has no image tower, float pixels have another size than the model's or were never
                normalised, or as `as_8bit`.
        """
        yield from self._image_batches(images, programs.image_features)

    def text_batches(self, texts: Sequence[Any]) -> Iterator[BatchFeatures]:
        """Places among the texts and pooled features of the text tower before the head, short texts first.

        Args:
            texts: strings, or lists of token ids with their special tokens in place.

        Raises:
            InputError: the model has no text tower, or a text has more tokens than its context.
        """
        ids = self.token_ids(texts) if len(texts) or not self.mesh.is_multi_process else []
        placed = self._current()
        program = partial(programs.text_features, self.mesh, placed.graph, self._products, placed.state)
        yield from self.steps.run(self._text_rows(ids), program)

    def prepare_texts(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """Texts as `text_batches` takes them, and the length to which each is padded."""
        ids, context = self.token_ids(texts), self.spec.text.context_length
        fixed = self.tokenizer.spec.fixed_length
        return ids, [fixed or bucket_length(len(row), context) for row in ids]

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """The ids of each text, and whether it was cut; None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.encode_with_truncation(texts)

    def project_image_features(self, features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, "images dim"]:
        """Unit vectors from what `image_features` gave."""
        return self._project("project_image", features)

    def project_text_features(self, features: Float[np.ndarray, "texts width"]) -> Float[np.ndarray, "texts dim"]:
        """Unit vectors from what `text_features` gave."""
        return self._project("project_text", features)

    def _project(self, method: str, features: np.ndarray) -> np.ndarray:
        placed = self._current()
        vectors = programs.project(self.mesh, placed.graph, placed.state, method, features)
        lengths = np.linalg.norm(vectors, axis=1)
        if not (lengths > 0.5).all():
            found = f"NaN, infinite or zero vectors in {int((~(lengths > 0.5)).sum())} of {len(vectors)} rows"
            raise InputError(self.name, method.removeprefix("project_"), found, "vectors of length 1")
        return vectors

    def _image_batches(self, images, program: Callable) -> Iterator[BatchFeatures]:
        self._require_images()
        placed = self._current()
        static = self.mesh, placed.graph, self.preprocessing, self._products
        if not self._images_fit:
            self._fit_images(program, static, placed.state)
        yield from self.steps.run(self._image_rows_of(images), partial(program, *static, placed.state))

    def _fit_images(self, program: Callable, static: tuple, state: Any) -> None:
        """Takes as many images at once as the compiled program leaves room for; refuses where not one fits."""
        self._images_fit, free = True, free_bytes(self.mesh)
        if free is None:
            return

        def needed(unit: int) -> int:
            shape, rows = self.preprocessing.pixel_shape, unit * self.mesh.size
            sharding = NamedSharding(self.mesh, PartitionSpec(AXES))
            active = jax.ShapeDtypeStruct((self.mesh.size,), bool, sharding=sharding)
            images = jax.ShapeDtypeStruct((rows, *shape), np.uint8, sharding=sharding)
            memory = program.lower(*static, state, active, images).compile().memory_analysis()
            under_way = STEPS_UNDER_WAY + self.mesh.size
            return memory.temp_size_in_bytes + under_way * (unit * math.prod(shape) + memory.output_size_in_bytes)

        fits = largest_unit(self._image_rows, needed, free)
        if not fits or (self.compute.images_at_once and fits < self._image_rows):
            self._refuse_images(self._image_rows, f"{free / 1e9:.1f} GB free", fits)
        if fits < self._image_rows:
            print(f"rococo: {self.name}: {fits} images at once fit into {free / 1e9:.1f} GB", file=sys.stderr)
        self._image_rows = fits

    def _refuse_images(self, count: int, memory: str, fits: int) -> NoReturn:
        device = self.mesh.devices.flat[0].device_kind
        found = f"{count}, which do not fit into the memory of {device} ({memory})"
        raise InputError(self.name, "images_at_once", found, f"at most {fits}" if fits else "a larger device")

    def _on_halved(self, batch: Rows, unit: int) -> None:
        """Takes smaller units from here on."""
        if len(batch.arrays) == 1 and self.compute.images_at_once is not None:
            self._refuse_images(batch.unit, "it ran out", unit)
        if len(batch.arrays) == 1:
            self._image_rows = min(self._image_rows, unit)
        else:
            self._tokens = min(self._tokens, unit * batch.cost)
        what = "images" if len(batch.arrays) == 1 else f"texts of {batch.cost} tokens"
        print(f"rococo: {self.name}: out of device memory, going on with {unit} {what} at once", file=sys.stderr)

    def _require_images(self) -> None:
        if self.spec.vision is None:
            raise InputError(self.name, "image tower", "none", "a model with an image tower")
        if self.preprocessing is None:
            raise InputError(self.name, "preprocessing", "none", "a model that came with its image processor's file")

    def _image_rows_of(self, images) -> Iterator[Rows]:
        done, images = 0, as_pixels(images, self.preprocessing)
        # `unit` is read once a batch: a step that did not fit lowers it from another thread.
        while batch := list(islice(images, (unit := self._image_rows) * self.steps.devices)):
            yield Rows(np.arange(done, done + len(batch)), (np.stack(batch),), unit)
            done += len(batch)

    def _text_rows(self, ids: list[list[int]]) -> Iterator[Rows]:
        counts, context = [len(row) for row in ids], self.spec.text.context_length
        fixed = self.tokenizer.spec.fixed_length
        for batch in text_batches(counts, context, self._tokens, self.steps.devices, fixed):
            arrays = self.tokenizer.pad([ids[i] for i in batch.index], batch.length)
            yield Rows(batch.index, tuple(arrays), batch.unit, batch.length)

    def token_ids(self, texts: Sequence[Any]) -> list[list[int]]:
        """The ids of each text, as `encode_text` takes them, special tokens in place.

        Raises InputError: the model has no text tower or no tokenizer, or a text has more tokens than its context.
        """
        return token_ids(self.name, self.spec.text, self.tokenizer, texts)
