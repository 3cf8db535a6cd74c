"""Encode images and texts with a model of this project, as unit vectors in float32.

The module is a pure function of its parameters; `Encoder` adds preprocessing, tokenizer, batches of one static shape,
and the mesh. Weights may be changed in place: each call computes, and identifies the model, with the weights that it
has at that moment. An embedding depends neither on the batch size of the call nor on the other items, their order, or
the number of devices: every device always runs the same program on the same number of rows (`device_steps`).
"""

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float
from PIL import Image

from rococo_jax.checkpoints.parameters import hash_parameters, parameters_of
from rococo_jax.data.pixel_cache import PixelView
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer, TokenRows
from rococo_jax.data.training_images import TrainingImages
from rococo_jax.encoders import matching, programs
from rococo_jax.encoders.device_steps import BatchFeatures, DeviceSteps, StepBatch, gather_in_order
from rococo_jax.encoders.programs import (
    Compute,
    as_pixels,
    bucket_length,
    images_at_once,
    list_of_texts,
    text_batches,
    text_tokens_at_once,
    token_ids,
)
from rococo_jax.encoders.protocol import Embeds, OnProgress, PairIndices, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder
from rococo_jax.models.attention import use_fused_attention
from rococo_jax.models.fsdp import shard_model
from rococo_jax.models.products import Products
from rococo_jax.runtime import make_mesh
from rococo_jax.storage import hash_json


class Encoder(Embeds, ScoresPairs):
    """A dual encoder (or a single tower) with its preprocessing and tokenizer, placed on a mesh.

    With a matching head it also scores pairs. Candidates are then ranked by logit + cosine, as BLIP's published
    evaluation does.

    Attributes:
        model: the `DualEncoder` module.
        preprocessing: turns images into pixels; None for a text tower.
        tokenizer: turns strings into token ids; None for an image tower.
        provenance: origin of the weights, and the hash that was recorded with them; not part of the identity.
        name: what reports call it.
        mesh: the devices it runs on; parameters are sharded over its axis `fsdp`.
        training_images: the images that it was trained on; None if they are not known.
    """

    adds_cosine, score_name = True, "matching head's logit + cosine"

    def __init__(
        self,
        model: DualEncoder,
        preprocessing: Preprocessing | None,
        tokenizer: Tokenizer | None,
        provenance: dict[str, Any] | None = None,
        name: str = "model",
        mesh: Mesh | None = None,
        training_images: TrainingImages | None = None,
    ):
        self.preprocessing, self.tokenizer = preprocessing, tokenizer
        self.provenance, self.name, self.training_images = dict(provenance or {}), name, training_images
        self.mesh = make_mesh() if mesh is None else mesh
        self.model = model
        self._place()
        platform = self.mesh.devices.flat[0].platform
        self._images_per_device = images_at_once(self.spec, platform)
        self._tokens_per_device = text_tokens_at_once(self.spec, platform)
        self.steps = DeviceSteps(self.name, self.mesh, self._use_smaller_unit)
        self.compute = Compute("bfloat16" if model.dtype == jnp.bfloat16 else "float32")

    def with_model(self, model: DualEncoder, **changes: Any) -> "Encoder":
        """Return the encoder of another module; `changes` are other arguments of the constructor that differ."""
        names = ("preprocessing", "tokenizer", "provenance", "name", "mesh", "training_images")
        return Encoder(model, **{**{name: getattr(self, name) for name in names}, **changes})

    @property
    def spec(self):
        """The `ModelSpec` of the module."""
        return self.model.spec

    def use(self, compute: Compute) -> None:
        """Compute as requested from now on, in the dtype of the module."""
        if jnp.dtype(compute.dtype) != jnp.dtype(self.model.dtype):
            raise ValueError(f"{compute.precision} for a model in {jnp.dtype(self.model.dtype).name}")
        self.compute = compute
        self._images_per_device = compute.images_at_once or self._images_per_device

    # Weights

    def _place(self) -> None:
        """Place the parameters on the mesh: sharded over its axis `fsdp`, else copied to every device."""
        use_fused_attention(self.model, self.mesh, self.model.dtype)
        self._hashes: dict[str, str] = {}
        if self.mesh.shape["fsdp"] > 1 or self.mesh.is_multi_process:
            self._graph, self._state = shard_model(self.model, self.mesh)
            self.model = nnx.merge(self._graph, self._state)
            self._arrays = jax.tree.leaves(nnx.split(self.model)[1])
        else:
            self._graph, state = nnx.split(self.model)
            self._arrays: list[jax.Array | np.ndarray] = jax.tree.leaves(state)
            self._state = jax.device_put(state, NamedSharding(self.mesh, PartitionSpec()))

    def graph_and_state(self) -> tuple[Any, Any]:
        """Return the graph of the current module, and its state on the devices (`nnx.split`).

        JAX arrays are immutable: whoever changes a model replaces its arrays. So a model is unchanged as long as it
        holds the same array objects, and their values need not be read. Arrays of NumPy are placed again in each call.
        """
        graph, state = nnx.split(self.model)
        arrays = jax.tree.leaves(state)
        same_arrays = len(arrays) == len(self._arrays) and all(map(operator.is_, arrays, self._arrays))
        if not (same_arrays and graph == self._graph and all(isinstance(array, jax.Array) for array in arrays)):
            self._place()
        return self._graph, self._state

    def _hash_of(self, prefix: str) -> str:
        """Return the hash of the current parameters whose paths begin with a prefix."""
        self.graph_and_state()
        if prefix not in self._hashes:
            parameters = parameters_of(self.model)
            selected = {path: array for path, array in parameters.items() if path.startswith(prefix)}
            self._hashes[prefix] = hash_parameters(selected)
        return self._hashes[prefix]

    @property
    def weights_sha256(self) -> str:
        """Hash of the current weights. All processes must call this if parameters are sharded over several."""
        return self._hash_of("")

    def remember_hash(self, sha256: str) -> None:
        """Store the hash of the weights, which the caller has just computed."""
        self._hashes[""] = sha256

    # Identity

    def describe(self) -> dict[str, Any]:
        """Return the name and everything that decides an embedding, as JSON.

        This covers the hash of the current weights, architecture, preprocessing, hash of the tokenizer, dtype, and the
        precision of float32 products if it is not the highest.
        """
        description = {
            "name": self.name,
            "weights": self.weights_sha256,
            "spec": self.spec.to_json(),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_json(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.hash(),
            "dtype": jnp.dtype(self.model.dtype).name,
        }
        return description | ({"precision": "high"} if self.compute.precision == "high" else {})

    def fingerprint(self) -> str:
        """Return a hash of `describe` without the name."""
        return hash_json({key: value for key, value in self.describe().items() if key != "name"})

    def describe_tower(self, side: str) -> dict[str, Any]:
        """Return everything that decides a feature of one tower (`vision` or `text`), without the heads.

        Models that share a tower and differ in what was trained on top of it have the same description.
        """
        description = self.describe()
        input_key = "preprocessing" if side == "vision" else "tokenizer"
        tower = {input_key: description[input_key], "dtype": description["dtype"], "spec": description["spec"][side]}
        if "precision" in description:
            tower["precision"] = description["precision"]
        if side == "vision" and self.compute.images_at_once is not None:
            tower["images_at_once"] = self.compute.images_at_once  # decides the last bits
        return {"weights": self._hash_of(f"{side}."), **tower}

    def facts(self) -> dict[str, Any]:
        """Return provenance, size, cost and warnings for readers; they decide no number beyond the fingerprint."""
        from rococo_jax.encoders.inspection import inspect_model

        facts = inspect_model(self)
        reported = ("provenance", "weights_sha256", "embedding_dimensions", "parameters", "flops", "warnings")
        preprocessing = self.preprocessing and self.preprocessing.describe()
        tokenizer = self.tokenizer and self.tokenizer.spec.to_json()
        size = {} if self.preprocessing is None else {"image_size": self.preprocessing.image_size[0]}
        return {**{key: facts[key] for key in reported}, **size, "preprocessing": preprocessing, "tokenizer": tokenizer}

    @property
    def logit_scale(self) -> float:
        """The factor on cosines that the model was trained with."""
        return float(np.exp(np.asarray(self.model.logit_scale[...], np.float64)))

    # Images

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Return the image resized and cropped to the model's input, uint8.

        Raises InputError if the model has no image tower or no preprocessing, or the image is too narrow.
        """
        self._check_image_tower()
        return self.preprocessing.resize(image)

    @property
    def pixel_view(self) -> PixelView | None:
        """`prepare` with a key under which pixels are cached; None without an image tower."""
        return self.preprocessing and self.preprocessing.pixel_view

    @property
    def images_at_once(self) -> int:
        """Number of images that all devices encode in one step."""
        return self._images_per_device * self.mesh.size

    def image_batches(self, images) -> Iterator[BatchFeatures]:
        """Yield indices into the images and pooled features of the image tower before its head, batch by batch.

        Args:
            images: a sequence of PIL images, or of arrays of whole numbers from 0 to 255, `(h, w, 3)` of any size
                (`as_8bit`), which are resized and cropped to the model's input; float arrays of the model's input size
                are already normalised. One array `(n, h, w, 3)` is a sequence of them.

        Raises:
            InputError: the model has no image tower, float pixels have another size than the model's input or were
                never normalised, or as `as_8bit`.
        """
        yield from self._run_on_images(programs.image_features, images)

    def image_tokens(self, images) -> Float[np.ndarray, "images tokens width"]:
        """Return the output of the image tower before pooling, for `matching_logits`.

        Raises InputError as `encode_image`.
        """
        return gather_in_order(self.name, "images", self._run_on_images(programs.image_tokens, images))

    def project_image_features(self, features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, "images dim"]:
        """Return unit vectors from the output of `image_features`."""
        return self._project("project_image", features)

    def _run_on_images(self, program: Callable, images) -> Iterator[BatchFeatures]:
        self._check_image_tower()
        graph, state = self.graph_and_state()
        program = partial(program, self.mesh, graph, self.preprocessing, self._products, state)
        yield from self.steps.run(self._batch_images(images), program)

    def _batch_images(self, images) -> Iterator[StepBatch]:
        start, pixels = 0, as_pixels(images, self.preprocessing)
        while True:
            # Read once for each batch: another thread lowers it if a step exceeds the memory.
            unit = self._images_per_device
            batch = list(islice(pixels, unit * self.steps.devices))
            if not batch:
                return
            yield StepBatch(np.arange(start, start + len(batch)), (np.stack(batch),), unit)
            start += len(batch)

    def _check_image_tower(self) -> None:
        if self.spec.vision is None:
            raise InputError(self.name, "image tower", "none", "a model with an image tower")
        if self.preprocessing is None:
            raise InputError(self.name, "preprocessing", "none", "a model that came with its image processor's file")

    # Texts

    def token_ids(self, texts: Iterable[Any]) -> list[list[int]]:
        """Return the token ids of each text, as `encode_text` takes them, with their special tokens.

        Raises InputError if the model has no text tower or no tokenizer, or a text has more tokens than its context.
        """
        return token_ids(self.name, self.spec.text, self.tokenizer, texts)

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """Return the token ids of each text and whether it was truncated; None without a tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.encode_with_truncation(texts)

    def prepare_texts(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """Return texts as `text_batches` takes them, and the length to which each is padded."""
        ids, context = self.token_ids(texts), self.spec.text.context_length
        fixed = self.tokenizer.spec.fixed_length
        return ids, [fixed or bucket_length(len(row), context) for row in ids]

    def text_batches(self, texts: Iterable[Any]) -> Iterator[BatchFeatures]:
        """Yield indices into the texts and pooled features of the text tower before its head, short texts first.

        Args:
            texts: strings, or lists of token ids with their special tokens, in any iterable with an order.

        Raises:
            InputError: the model has no text tower, a text has more tokens than its context, or texts are something
                else.
        """
        texts = list_of_texts(self.name, texts)
        ids = self.token_ids(texts) if texts or not self.mesh.is_multi_process else []
        graph, state = self.graph_and_state()
        program = partial(programs.text_features, self.mesh, graph, self._products, state)
        yield from self.steps.run(self._batch_texts(ids), program)

    def project_text_features(self, features: Float[np.ndarray, "texts width"]) -> Float[np.ndarray, "texts dim"]:
        """Return unit vectors from the output of `text_features`."""
        return self._project("project_text", features)

    def _batch_texts(self, ids: list[list[int]]) -> Iterator[StepBatch]:
        counts, context = [len(row) for row in ids], self.spec.text.context_length
        fixed = self.tokenizer.spec.fixed_length
        for batch in text_batches(counts, context, self._tokens_per_device, self.steps.devices, fixed):
            arrays = self.tokenizer.pad([ids[index] for index in batch.index], batch.length)
            yield StepBatch(batch.index, tuple(arrays), batch.unit, batch.length)

    # Pairs

    @property
    def pair_scorer(self) -> "Encoder | None":
        """The encoder itself if it has a matching head, else None."""
        return None if self.spec.matching is None else self

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairIndices, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """Return the matching head's logit of a match of each pair; the tokens of an image are computed once.

        Raises InputError as `encode_text`.
        """
        return self.matching_logits(self.image_tokens(images), texts, pairs, on_progress)[:, 1]

    def matching_logits(
        self,
        image_tokens: Float[np.ndarray, "images tokens width"],
        texts: Sequence[Any],
        pairs: PairIndices,
        on_progress: OnProgress | None = None,
    ) -> Float[np.ndarray, "pairs 2"]:
        """Return the matching head's logits of no match and of a match of each pair, float32.

        Args:
            image_tokens: from `image_tokens`.
            texts: as `encode_text` takes them. If the spec has a `first_id`, it replaces their first token.
            pairs: the image and the text of each, as indices into `image_tokens` and `texts`.
            on_progress: called with the number of finished pairs.

        Raises:
            InputError: as `encode_text`.
        """
        ids, first_id = self.token_ids(texts), self.spec.matching.first_id
        if first_id is not None:
            ids = [[first_id, *row[1:]] for row in ids]
        group_pairs = partial(
            matching.group_pairs,
            ids=ids,
            tokenizer=self.tokenizer,
            context_length=self.spec.text.context_length,
            tokens_per_device=self._tokens_per_device,
            devices=self.steps.devices,
        )
        return matching.matching_logits(
            self.graph_and_state(), self.steps, image_tokens, pairs, group_pairs, on_progress
        )

    # Both sides

    @property
    def _products(self) -> Products:
        return self.compute.products_on(self.mesh.devices.flat[0])

    def _project(self, method: str, features: np.ndarray) -> np.ndarray:
        vectors = programs.project(self.mesh, *self.graph_and_state(), method, features)
        is_unit = np.linalg.norm(vectors, axis=1) > 0.5
        if not is_unit.all():
            problem = f"NaN, infinite or zero vectors in {int((~is_unit).sum())} of {len(vectors)} rows"
            raise InputError(self.name, method.removeprefix("project_"), problem, "vectors of length 1")
        return vectors

    def _use_smaller_unit(self, batch: StepBatch, unit: int) -> None:
        """Encode fewer items at once from now on, after a batch exceeded the memory."""
        if batch.tokens:
            self._tokens_per_device = min(self._tokens_per_device, unit * batch.tokens)
            items = f"texts of {batch.tokens} tokens"
        else:
            if self.compute.images_at_once is not None:
                device = self.mesh.devices.flat[0].device_kind
                problem = f"{batch.unit}, which exceed the memory of {device}"
                raise InputError(self.name, "images_at_once", problem, f"at most {unit}")
            self._images_per_device = min(self._images_per_device, unit)
            items = "images"
        print(f"rococo: {self.name}: out of device memory, continuing with {unit} {items} at once", file=sys.stderr)
