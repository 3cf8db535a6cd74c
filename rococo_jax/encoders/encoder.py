"""A loaded model as users hold it: `encode_image` and `encode_text` give unit vectors in float32.

The module inside is a pure function of its parameters; this class adds what surrounds it: preprocessing, tokenizer,
batches of one static shape, and the mesh. A vector depends neither on the batch size of the call nor on the other
items, their order, or the number of devices: every device always runs the same program on the same number of rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int
from PIL import Image

from rococo_jax.checkpoints.parameters import hash_parameters, parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_images import TrainingImages
from rococo_jax.encoders.buckets import pad_rows, text_batches
from rococo_jax.encoders.matching import Matcher
from rococo_jax.encoders.protocol import OnProgress
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder
from rococo_jax.models.attention import use_fused_attention
from rococo_jax.models.fsdp import merge_gathered, shard_model
from rococo_jax.runtime import AXES, make_mesh
from rococo_jax.storage import hash_json

# Rows a device encodes at once. Part of what decides a vector's last bits, hence not a parameter of a call.
_CPU_IMAGES, _ACCELERATOR_IMAGES = 16, 256
_CPU_TOKENS, _ACCELERATOR_TOKENS = 1024, 16384
_PROJECTED_ROWS = 256


class Encoder:
    """A dual encoder (or a single tower) with its preprocessing and tokenizer, placed on a mesh.

    Attributes:
        model: the `DualEncoder` module.
        preprocessing: how images become pixels; None for a text tower.
        tokenizer: how strings become token ids; None for an image tower.
        provenance: where the weights came from, and their hash.
        name: what reports call it.
        mesh: the devices it runs on; parameters are sharded over its axis `fsdp`.
        training_images: what it was trained on; None where that is not known.
    """

    training_images: TrainingImages | None = None

    def __init__(
        self,
        model: DualEncoder,
        preprocessing: Preprocessing | None,
        tokenizer: Tokenizer | None,
        provenance: dict[str, Any] | None = None,
        name: str = "model",
        mesh: Mesh | None = None,
    ):
        self.model, self.preprocessing, self.tokenizer = model, preprocessing, tokenizer
        self.provenance, self.name = dict(provenance or {}), name
        self.mesh = make_mesh() if mesh is None else mesh
        use_fused_attention(model, self.mesh, model.dtype)
        if self.mesh.shape["fsdp"] > 1 or self.mesh.is_multi_process:
            self._graph, self._state = shard_model(model, self.mesh)
            self.model = nnx.merge(self._graph, self._state)
        else:
            self._graph, state = nnx.split(model)
            self._state = jax.device_put(state, NamedSharding(self.mesh, PartitionSpec()))
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        self._image_rows = _CPU_IMAGES if on_cpu else _ACCELERATOR_IMAGES
        self._tokens = _CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS
        self._tower_hashes: dict[str, str] = {}

    @property
    def spec(self):
        """The `ModelSpec` of the module."""
        return self.model.spec

    def describe(self) -> dict[str, Any]:
        """All that decides an embedding, as JSON: weights, architecture, preprocessing, tokenizer, dtype."""
        return {
            "name": self.name,
            "weights": self.provenance.get("weights_sha256"),
            "spec": self.spec.to_json(),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_json(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.hash(),
            "dtype": jnp.dtype(self.model.dtype).name,
        }

    def fingerprint(self) -> str:
        """A hash of all that decides an embedding; the name is no part of it."""
        return hash_json({key: value for key, value in self.describe().items() if key != "name"})

    def prepare(self, image: Image.Image) -> np.ndarray:
        """The image resized and cropped as the model wants it, uint8.

        Raises:
            InputError: the model has no image tower or no preprocessing, or the image is too narrow.
        """
        self._require_images()
        return self.preprocessing.resize(image)

    def facts(self) -> dict[str, Any]:
        """Provenance, size, cost, and what to look at twice; decides no figure that the fingerprint does not hold."""
        from rococo_jax.encoders.inspection import inspect_model

        facts = inspect_model(self)
        told = ("provenance", "weights_sha256", "embedding_dimensions", "parameters", "flops", "warnings")
        preprocessing = self.preprocessing and self.preprocessing.describe()
        tokenizer = self.tokenizer and self.tokenizer.spec.to_json()
        return {**{key: facts[key] for key in told}, "preprocessing": preprocessing, "tokenizer": tokenizer}

    def describe_tower(self, side: str) -> dict[str, Any]:
        """All that decides a feature of one tower (`vision` or `text`), heads left out: models that share a tower and
        differ in what was trained on top of it agree here."""
        if side not in self._tower_hashes:
            parameters = parameters_of(self.model)
            self._tower_hashes[side] = hash_parameters(
                {k: v for k, v in parameters.items() if k.startswith(f"{side}.")}
            )
        about = self.describe()
        before = "preprocessing" if side == "vision" else "tokenizer"
        kept = {before: about[before], "dtype": about["dtype"], "spec": about["spec"][side]}
        return {"weights": self._tower_hashes[side], **kept}

    def describe_matching(self) -> dict[str, Any]:
        """All that decides the logits of a pair: as `describe`, by the parameters themselves."""
        if "matching" not in self._tower_hashes:
            self._tower_hashes["matching"] = hash_parameters(parameters_of(self.model))
        about = {key: value for key, value in self.describe().items() if key != "name"}
        return {**about, "weights": self._tower_hashes["matching"]}

    @property
    def images_at_once(self) -> int:
        """How many images all devices encode in one step."""
        return self._image_rows * self.mesh.size

    def encode_image(self, images, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images dim"]:
        """Unit image vectors, float32.

        Args:
            images: uint8 `(n, h, w, 3)` of any size (resized and cropped as the model wants), float pixels
                `(n, h, w, 3)` already normalised, or a sequence of PIL images.
            on_progress: called with the number of images done.

        Raises:
            InputError: the model has no image tower, or the pixels have another size than the model's.
        """
        return self.project_image_features(self.image_features(images, on_progress))

    def encode_text(
        self, texts: Sequence[Any], on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "texts dim"]:
        """Unit text vectors, float32.

        Args:
            texts: strings, or lists of token ids with their special tokens in place.
            on_progress: called with the number of texts done.

        Raises:
            InputError: the model has no text tower, or a text has more tokens than its context.
        """
        return self.project_text_features(self.text_features(texts, on_progress))

    def image_features(self, images, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images width"]:
        """Pooled features of the image tower before the projection head, as `encode_image` takes them."""
        return self._encode_images(images, on_progress)

    def text_features(
        self, texts: Sequence[Any], on_progress: OnProgress | None = None
    ) -> Float[np.ndarray, "texts width"]:
        """Pooled features of the text tower before the projection head, as `encode_text` takes them."""
        return self._encode_texts(texts, on_progress)

    def project_image_features(self, features: Float[np.ndarray, "images width"]) -> Float[np.ndarray, "images dim"]:
        """Unit vectors from what `image_features` gave."""
        return self._project("project_image", features)

    def project_text_features(self, features: Float[np.ndarray, "texts width"]) -> Float[np.ndarray, "texts dim"]:
        """Unit vectors from what `text_features` gave."""
        return self._project("project_text", features)

    def image_tokens(self, images, on_progress: OnProgress | None = None) -> Float[np.ndarray, "images tokens width"]:
        """What the image tower gives before pooling, as `encode_image` takes the images; for `matching_logits`.

        Raises:
            InputError: the model has no matching head, or as `encode_image`.
        """
        self.require_matching()
        return self._encode_images(images, on_progress, _image_tokens)

    def matching_logits(
        self,
        image_tokens: Float[np.ndarray, "images tokens width"],
        texts: Sequence[Any],
        pairs: tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]],
        on_progress: OnProgress | None = None,
    ) -> Float[np.ndarray, "pairs 2"]:
        """What the matching head says of pairs: logits of no match and of a match, float32.

        Args:
            image_tokens: from `image_tokens`.
            texts: as `encode_text` takes them. Where the spec has a `first_id`, it replaces their first token.
            pairs: the image and the text of each, as places in `image_tokens` and `texts`.
            on_progress: called with the number of pairs done.

        Raises:
            InputError: the model has no matching head, or as `encode_text`.
        """
        self.require_matching()
        ids, first = self.token_ids(texts), self.spec.matching.first_id
        ids = ids if first is None else [[first, *row[1:]] for row in ids]
        context = self.spec.text.context_length
        matcher = Matcher(self._graph, self._state, self.tokenizer, context, self.mesh, self._tokens)
        return matcher.logits(image_tokens, ids, pairs, on_progress)

    def require_matching(self) -> None:
        """Refuses to go on without a matching head.

        Raises:
            InputError: the model has none.
        """
        if self.spec.matching is None:
            raise InputError(self.name, "matching head", "none", "a model with one, such as BLIP's for retrieval")

    def _project(self, method: str, features: np.ndarray) -> np.ndarray:
        rows = _PROJECTED_ROWS * self.mesh.size
        outputs = []
        for start in range(0, len(features), rows):
            part = features[start : start + rows]
            vectors = _projected(self._graph, method, self._state, self._place(pad_rows(part, rows)))
            outputs.append(np.asarray(vectors)[: len(part)])
        vectors = np.concatenate(outputs)
        lengths = np.linalg.norm(vectors, axis=1)
        if not (lengths > 0.5).all():
            found = f"NaN, infinite or zero vectors in {int((~(lengths > 0.5)).sum())} of {len(vectors)} rows"
            raise InputError(self.name, method.removeprefix("project_"), found, "vectors of length 1")
        return vectors

    def _encode_images(self, images, on_progress: OnProgress | None, program: Callable | None = None) -> np.ndarray:
        self._require_images()
        rows = self._image_rows * self.mesh.size
        outputs = []
        for batch in self._pixel_batches(images, rows):
            count = len(batch)
            placed = self._place(pad_rows(batch, rows))
            encode = partial(program or _image_features, self._graph, self.preprocessing)
            outputs.append((encode(self._state, placed), count))
            if len(outputs) > 1:
                outputs[-2] = _fetch(outputs[-2], on_progress)
        if not outputs:
            raise InputError(self.name, "images", "none", "at least one image")
        outputs[-1] = _fetch(outputs[-1], on_progress)
        return np.concatenate(outputs)

    def _require_images(self) -> None:
        if self.spec.vision is None:
            raise InputError(self.name, "image tower", "none", "a model with an image tower")
        if self.preprocessing is None:
            raise InputError(self.name, "preprocessing", "none", "a model that came with its image processor's file")

    def _pixel_batches(self, images, rows: int) -> Iterator[np.ndarray]:
        if isinstance(images, np.ndarray | jax.Array):
            images = np.asarray(images)
            if images.ndim != 4 or images.shape[3] != 3:
                raise InputError("images", "shape", images.shape, "(images, height, width, 3)")
            size = (self.spec.vision.image_size,) * 2
            if images.dtype != np.uint8 and images.shape[1:3] != size:
                raise InputError("pixels", "size", images.shape[1:3], f"{size}, as the model sees them")
            if images.dtype != np.uint8 or images.shape[1:3] == size:
                yield from (images[start : start + rows] for start in range(0, len(images), rows))
                return
            images = (Image.fromarray(image) for image in images)
        for batch in _batched(images, rows):
            yield np.stack([x if isinstance(x, np.ndarray) else self.preprocessing.resize(x) for x in batch])

    def token_ids(self, texts: Sequence[Any]) -> list[list[int]]:
        """The ids of each text, as `encode_text` takes them, special tokens in place.

        Raises:
            InputError: the model has no text tower or no tokenizer, or a text has more tokens than its context.
        """
        if self.spec.text is None:
            raise InputError(self.name, "text tower", "none", "a model with a text tower")
        if self.tokenizer is None:
            raise InputError(self.name, "tokenizer", "none", "a model that came with its tokenizer files")
        if isinstance(texts, str) or len(texts) == 0:
            raise InputError(self.name, "texts", repr(texts), "a non-empty sequence of strings or lists of token ids")
        ids = self.tokenizer.encode(list(texts)) if isinstance(texts[0], str) else [list(map(int, t)) for t in texts]
        context = self.spec.text.context_length
        longest = max(map(len, ids))
        if longest > context:
            raise InputError(self.name, "token ids", f"{longest} tokens", f"at most {context}")
        self._check_ids(ids)
        return ids

    def _check_ids(self, ids: list[list[int]]) -> None:
        """Refuses ids that a look-up would clip, and texts that are not ended where they are pooled."""
        text = self.spec.text
        for row in ids:
            if row and not 0 <= min(row) <= max(row) < text.vocabulary_size:
                found = max(row) if min(row) >= 0 else min(row)
                raise InputError(self.name, "token ids", found, f"0 to {text.vocabulary_size - 1}")
            if text.pooling == "first_eos" and text.eos_id not in row:
                raise InputError(self.name, "token ids", f"no {text.eos_id} in a text", "every text ended by it")

    def _encode_texts(self, texts: Sequence[Any], on_progress: OnProgress | None) -> np.ndarray:
        ids = self.token_ids(texts)
        counts, context = [len(row) for row in ids], self.spec.text.context_length
        output, pending = None, None
        for batch in text_batches(counts, context, self._tokens, self.mesh.size, self.tokenizer.spec.fixed_length):
            padded, mask = self.tokenizer.pad([ids[i] for i in batch.index], batch.length)
            placed = self._place(pad_rows(padded, batch.rows)), self._place(pad_rows(mask, batch.rows))
            vectors = _text_features(self._graph, self._state, *placed)
            if pending is None:
                output = np.empty((len(ids), vectors.shape[1]), np.float32)
            else:
                output[pending[1]] = _fetch((pending[0], len(pending[1])), on_progress)
            pending = vectors, batch.index
        output[pending[1]] = _fetch((pending[0], len(pending[1])), on_progress)
        return output

    def _place(self, rows: np.ndarray) -> jax.Array:
        return jax.device_put(rows, NamedSharding(self.mesh, PartitionSpec(AXES)))


@partial(jax.jit, static_argnums=(0, 1))
def _image_features(graph, preprocessing: Preprocessing | None, state, images) -> jax.Array:
    pixels = preprocessing.normalise(images) if images.dtype == jnp.uint8 else images.astype(jnp.float32)
    return merge_gathered(graph, state).image_features(pixels)


@partial(jax.jit, static_argnums=(0, 1))
def _image_tokens(graph, preprocessing: Preprocessing | None, state, images) -> jax.Array:
    pixels = preprocessing.normalise(images) if images.dtype == jnp.uint8 else images.astype(jnp.float32)
    return merge_gathered(graph, state).vision.tokens(pixels)


@partial(jax.jit, static_argnums=0)
def _text_features(graph, state, ids, mask) -> jax.Array:
    return merge_gathered(graph, state).text_features(ids, mask)


@partial(jax.jit, static_argnums=(0, 1))
def _projected(graph, method: str, state, features) -> jax.Array:
    return getattr(merge_gathered(graph, state), method)(features)


def _fetch(output: tuple[jax.Array, int], on_progress: OnProgress | None) -> np.ndarray:
    vectors, count = output
    if on_progress is not None:
        on_progress(count)
    return np.asarray(vectors)[:count]


def _batched(items: Iterable, size: int) -> Iterator[list]:
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch
