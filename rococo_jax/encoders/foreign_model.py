"""Use an object of any framework as a model: it embeds, scores pairs, or does both, depending on its methods.

    class MyModel:
        name = "my model"
        def encode_image(self, images): ...        # list of PIL images in RGB -> (n, d)
        def encode_text(self, texts): ...          # list of str -> (m, d)

    class MyReranker:
        def score_pairs(self, images, texts): ...  # lists of equal length -> (n,), higher is better

An object whose encoders return a list of matrices, a row for each token, is scored pair by pair by MaxSim. Whatever an
object returns is checked; embeddings are normalised to unit length.
"""

import functools
import numbers
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float
from PIL import Image

from rococo_jax.data.images import MOST_BYTES, batches_by_size, chunks, size_in_memory
from rococo_jax.data.pictures import as_rgb
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.encoders.device_steps import BatchFeatures, is_out_of_memory
from rococo_jax.encoders.foreign import as_numpy, compare_alone, run_user_code
from rococo_jax.encoders.late_interaction import max_sim
from rococo_jax.encoders.programs import separate_images
from rococo_jax.encoders.protocol import Embeds, OnProgress, PairIndices, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh

_IMAGES_AT_ONCE, _TEXTS_AT_ONCE, _PAIRS_AT_ONCE, _TOKEN_MATRICES_AT_ONCE = 64, 256, 32, 32
# Limit of the cached token embeddings of texts, in numbers: 1 GB.
_CACHED_NUMBERS = 2**28
_ENCODERS = {"encode_image": "(list of PIL images)", "encode_text": "(list of str)"}


class ForeignModel(Embeds, ScoresPairs):
    """A model that wraps an object of a user or of another library, and does what the object can do.

    Besides the members that `protocol` documents, objects of the adapters may have:

        picture_for_library(image)    converts a picture for the library; by default to RGB on white
        score_tolerance               the difference between a pair's score alone and in a batch that is an error
        in_logs                       whether scores are probabilities; by default if all are between 0 and 1

    Args:
        model: the object.
        name: what tables call it; by default the object's own name, or that of its class.
        mesh: the devices that similarities are computed on.
        images_at_once: number of images in one call of `encode_image`; by default 64, or fewer that take 256 MB.

    Attributes:
        object_name: the object's own name, whatever tables call it; empty if it has none.
        prompts: the instructions that `with_prompt` has set, by role.
        pairs_at_once: number of pairs in a call of `score_pairs`; halved if memory runs out.

    Raises:
        InputError: the object neither encodes nor scores pairs, or its `batch_size` is not a whole number above 0.
    """

    def __init__(
        self, model: Any, name: str | None = None, mesh: Mesh | None = None, images_at_once: int | None = None
    ):
        self.model, object_name = model, getattr(model, "name", None)
        self.object_name = object_name if isinstance(object_name, str) else ""
        self.prompts: dict[str, str] = {}
        self.name = name or self.object_name or type(model).__name__
        self.mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
        self._images_at_once = images_at_once
        self._compared: set[tuple[str, bool]] = set()
        self._text_tokens: dict[str, np.ndarray] = {}
        missing_encoders = [method for method in _ENCODERS if not self._has(method)]
        self._encodes, self._has_score_pairs = not missing_encoders, self._has("score_pairs")
        if missing_encoders and not self._has_score_pairs:
            problem = f"a {type(model).__name__} without {missing_encoders[0]}"
            signatures = " and ".join(f"{method}{arguments}" for method, arguments in _ENCODERS.items())
            raise InputError(self.name, "encoder", problem, f"an object with {signatures}, or with score_pairs")
        batch_size = getattr(model, "batch_size", None) if self._has_score_pairs else None
        if batch_size is not None and not (isinstance(batch_size, numbers.Integral) and batch_size >= 1):
            raise InputError(self.name, "batch_size", repr(batch_size), "a whole number, at least 1, or None")
        self.pairs_at_once = int(batch_size or _PAIRS_AT_ONCE)

    def _has(self, method: str) -> bool:
        return callable(getattr(self.model, method, None))

    @functools.cached_property
    def _returns_tokens(self) -> bool:
        """Whether the encoders return a matrix for each item; one text is encoded to find out."""
        if not self._encodes:
            return False
        try:
            return run_user_code("", lambda: as_numpy(self.model.encode_text(["a photo"])[0]).ndim) == 2
        except InputError:  # the first real call reports it
            return False

    @property
    def embedder(self) -> "ForeignModel | None":
        """The model itself if the object returns one embedding for each item."""
        return self if self._encodes and not self._returns_tokens else None

    @property
    def pair_scorer(self) -> "ForeignModel | None":
        """The model itself if the object scores pairs or returns token embeddings."""
        return self if self._has_score_pairs or self._returns_tokens else None

    @property
    def logit_scale(self) -> float | None:
        """The object's factor on cosines, or on scores of pairs; None if it has none."""
        scale = getattr(self.model, "logit_scale", None)
        if scale is None or callable(scale):
            return None
        scale = float(np.asarray(as_numpy(scale), np.float64).reshape(-1)[0])
        if not 0 < scale < np.inf:
            raise InputError(self.name, "logit_scale", scale, "a factor on cosines, above 0")
        return scale

    @property
    def scale(self) -> float:
        """The object's factor on scores of pairs, else 1."""
        return self.logit_scale or 1.0

    @property
    def score_name(self) -> str:
        """Name of what candidates are ranked by."""
        return "MaxSim of token embeddings" if self._returns_tokens else ScoresPairs.score_name

    def prepare(self, image: Any) -> Image.Image:
        """Return the picture in RGB on white, or as the object's `picture_for_library` passes it to its library."""
        return getattr(self.model, "picture_for_library", as_rgb)(image)

    def with_prompt(self, prompt: str, role: str) -> "ForeignModel":
        """See `LoadedModel`. Objects that only score pairs take instructions for the query alone."""
        takes_role = not self._returns_tokens and (self._encodes or role == "query")
        if not takes_role or not self._has("with_prompt"):
            return super().with_prompt(prompt, role)
        prompted = run_user_code(self.name, lambda: self.model.with_prompt(prompt, role))
        loaded = ForeignModel(prompted, self.name, self.mesh, self._images_at_once)
        loaded.prompts = {**self.prompts, role: prompt}
        return loaded

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """Return the output of the object's `token_rows`; None if it has no such method.

        Raises InputError if the output does not cover every text.
        """
        method, expected = getattr(self.model, "token_rows", None), "ids of each text, and whether it was truncated"
        if method is None:
            return None
        rows, truncated = run_user_code(
            self.name, lambda: tuple(map(list, method(list(texts)))), "token_rows", expected
        )
        if {len(rows), len(truncated)} != {len(texts)}:
            problem = f"{len(rows)} and {len(truncated)} for {len(texts)} texts"
            raise InputError(self.name, "token_rows", problem, expected)
        return rows, truncated

    # Identity

    def describe(self) -> dict[str, Any]:
        """Return name, identity, and the scale that turns the results into probabilities."""
        method = {"scores": "MaxSim"} if self._returns_tokens else {}
        return {"name": self.name, **self._identity(), "logit_scale": self.logit_scale, **method}

    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """Return the object's identity, which covers both towers; None if it has no fingerprint."""
        identity = self._identity()
        return None if identity["fingerprint"] is None else {"foreign": identity, "side": side}

    def _identity(self) -> dict[str, Any]:
        """Return class, own name, prompts and fingerprint: everything that identifies what the object computes."""
        kind = type(self.model)
        return {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "own_name": self.object_name,
            "given_prompts": self.prompts,
            "fingerprint": self.fingerprint(),
        }

    def fingerprint(self) -> str | None:
        """Return the object's own fingerprint, or None: then nothing is cached and no result is reused.

        Raises InputError if it is not a string.
        """
        if not hasattr(self.model, "fingerprint"):
            return None
        fingerprint = run_user_code(self.name, self.model.fingerprint, "fingerprint", "a non-empty string")
        if not isinstance(fingerprint, str) or not fingerprint:
            raise InputError(self.name, "fingerprint()", repr(fingerprint)[:80], "a non-empty string")
        return fingerprint

    def facts(self) -> dict[str, Any]:
        """Return the object's class."""
        return {"provenance": {"encoder": self.describe()["class"]}}

    # Embeddings

    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """Yield indices into the images (PIL images or arrays of pixels) and unit embeddings, batch by batch."""
        prepared = map(self.prepare, separate_images(images))
        return self._encode("encode_image", self._image_batches(prepared, _IMAGES_AT_ONCE))

    def text_batches(self, texts: Sequence[str]) -> Iterator[BatchFeatures]:
        """Yield indices into the texts and unit embeddings, batch by batch."""
        return self._encode("encode_text", chunks(texts, _TEXTS_AT_ONCE))

    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
        """Return the texts unchanged, and their numbers of characters."""
        return texts, list(map(len, texts))

    def project_image_features(self, features: Float[np.ndarray, "images dim"]) -> Float[np.ndarray, "images dim"]:
        """Return the features unchanged: there is no head."""
        return features

    project_text_features = project_image_features

    def _image_batches(self, images: Iterable[Any], at_once: int) -> Iterator[list[Any]]:
        """Yield images for one call each: as many as were requested, or `at_once` if they do not take much memory.

        Photographs are as large as their files, since the object itself resizes them.
        """
        if self._images_at_once is None:
            return batches_by_size(images, at_once)
        return batches_by_size(images, self._images_at_once, sys.maxsize)

    def _encode(self, method: str, batches: Iterable[list]) -> Iterator[BatchFeatures]:
        start, width = 0, None
        for batch in batches:
            embeddings = self._embed(method, batch)
            if width not in (None, embeddings.shape[1]):
                problem = f"embeddings of {width} and of {embeddings.shape[1]} dimensions"
                raise InputError(self.name, method, problem, "one number of dimensions")
            if self._is_first(method):
                alone = self._embed(method, batch[:1])
                compare_alone(self.name, method, "embeddings", embeddings[:1], alone, self._score_tolerance)
            width = embeddings.shape[1]
            yield np.arange(start, start + len(batch)), embeddings
            start += len(batch)

    def _embed(self, method: str, batch: list) -> Float[np.ndarray, "items dim"]:
        """Return the checked output of one call as unit vectors in float32."""
        expected = f"({len(batch)}, dim), one row for each item"
        array = self._call(method, expected, batch)
        if array.ndim != 2 or len(array) != len(batch) or array.shape[1] == 0:
            raise InputError(self.name, method, f"shape {array.shape}", expected)
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(self.name, method, f"embeddings of {array.dtype}", "floating-point numbers")
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(array).all(axis=1))[0]
            raise InputError(self.name, method, f"NaN or infinite values in row {row}", "finite numbers")
        norms = np.linalg.norm(array, axis=1, keepdims=True)
        if not norms.all():
            row = np.flatnonzero(norms == 0)[0]
            raise InputError(self.name, method, f"only zeros in row {row}", "embeddings with a direction")
        return (array / norms).astype(np.float32)

    # Pairs

    def check_texts(self, texts: Sequence[str]) -> None:
        """Call the object's `check_texts`, which raises an error for a text that it cannot read."""
        if self._has("check_texts"):
            run_user_code(
                self.name, lambda: self.model.check_texts(list(texts)), "check_texts", "texts that the model reads"
            )

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairIndices, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `ScoresPairs`. Images are read in order, and only those of the next pairs are held.

        Raises InputError if a score is NaN, there are not as many as pairs, or the object raises an error.
        """
        if self._returns_tokens:
            return self._max_sim(images, texts, pairs, on_progress)
        remaining, images_by_number = enumerate(images), {}
        order, scores, start = np.argsort(pairs[0], kind="stable"), np.empty(len(pairs[0]), np.float64), 0
        while start < len(scores):
            batch = order[start : start + self.pairs_at_once]
            count = _read_images(pairs[0][batch].tolist(), remaining, images_by_number)
            batch = batch[:count]
            batch_images = [images_by_number[index] for index in pairs[0][batch].tolist()]
            batch_texts = [texts[index] for index in pairs[1][batch].tolist()]
            try:
                scores[batch] = self._score_batch(batch_images, batch_texts)
            except InputError as error:
                if count == 1 or not is_out_of_memory(error.__cause__):
                    raise
                self.pairs_at_once = count // 2
                warning = f"out of memory with {count} pairs, continuing with {self.pairs_at_once} at once"
                print(f"rococo: {self.name}: {warning}", file=sys.stderr)
                continue
            start += count
            for number in [number for number in images_by_number if number < pairs[0][batch[-1]]]:
                del images_by_number[number]
            on_progress(count)
        return scores

    def _score_batch(self, images: list, texts: list[str]) -> Float[np.ndarray, " pairs"]:
        """Return the scores of one call; those of the shortest and the longest text are compared with their own."""
        scores, lengths = self._score(images, texts), [len(text) for text in texts]
        if self._is_first("score_pairs", len(set(lengths)) > 1):
            rows = sorted({int(np.argmin(lengths)), int(np.argmax(lengths))})
            alone = np.concatenate([self._score([images[row]], [texts[row]]) for row in rows])
            in_logs = getattr(self.model, "in_logs", bool(((scores > 0) & (scores < 1)).all()))
            items = [f"{texts[row]!r} in a batch of {len(texts)}" for row in rows]
            tolerance = self._score_tolerance
            compare_alone(self.name, "score_pairs", "scores", scores[rows], alone, tolerance, in_logs, items)
        return scores

    def _score(self, images: list, texts: list[str]) -> Float[np.ndarray, " pairs"]:
        """Return the checked scores of one call."""
        expected = f"({len(texts)},), a number for each pair"
        array = self._call("score_pairs", expected, images, texts)
        if array.shape != (len(texts),) or not np.issubdtype(array.dtype, np.number):
            raise InputError(self.name, "score_pairs", f"shape {array.shape} of {array.dtype}", expected)
        # Sums of log-probabilities can differ by less than float32 resolves.
        scores = array.astype(np.float64)
        if not np.isfinite(scores).all():
            row = np.flatnonzero(~np.isfinite(scores))[0]
            raise InputError(self.name, "score_pairs", f"{array[row]} for {texts[row]!r}", "finite numbers")
        return scores

    def _max_sim(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairIndices, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """Return the MaxSim of each pair. Each text is encoded once."""
        image_tokens = self._encode_tokens("encode_image", self._image_batches(images, _TOKEN_MATRICES_AT_ONCE))
        if sum(matrix.size for matrix in self._text_tokens.values()) > _CACHED_NUMBERS:
            self._text_tokens = {}
        new = [text for text in dict.fromkeys(texts) if text not in self._text_tokens]
        encoded = self._encode_tokens("encode_text", chunks(new, _TOKEN_MATRICES_AT_ONCE))
        self._text_tokens |= zip(new, encoded, strict=True)
        return max_sim(image_tokens, [self._text_tokens[text] for text in texts], pairs, on_progress)

    def _encode_tokens(self, method: str, batches: Iterable[list]) -> list[np.ndarray]:
        """Return a matrix for each item. Raises InputError unless all are finite and have one width."""
        matrices = []
        for batch in batches:
            expected = f"{len(batch)} matrices of token embeddings, finite numbers"
            encode = getattr(self.model, method)
            arrays = run_user_code(
                self.name, lambda encode=encode, batch=batch: list(map(as_numpy, encode(batch))), method, expected
            )
            widths = {array.shape[1] if array.ndim == 2 and len(array) else None for array in arrays}
            have_one_width = len(arrays) == len(batch) and len(widths) == 1 and None not in widths
            if not have_one_width or not all(np.isfinite(array).all() for array in arrays):
                problem = ", ".join(str(array.shape) for array in arrays[:3])
                raise InputError(self.name, method, f"{len(arrays)} of shapes {problem}, or NaN", expected)
            matrices += [array.astype(np.float32) for array in arrays]
        return matrices

    # Calls of the object

    def _call(self, method: str, expected: str, *inputs: list) -> np.ndarray:
        """Call a method of the object and return its array. Raises InputError if it fails or returns something else."""
        output = run_user_code(self.name, lambda: getattr(self.model, method)(*inputs), method, expected)
        array = run_user_code(self.name, lambda: as_numpy(output), method, expected)
        if array.dtype == object:
            attributes = output if isinstance(output, Mapping) else getattr(output, "__dict__", ())
            problem = f"a {type(output).__name__} with {', '.join(map(str, attributes)) or 'no attributes'}"[:200]
            raise InputError(self.name, method, problem, f"an array {expected}: return the attribute with it")
        return array

    @property
    def _score_tolerance(self) -> float | None:
        return getattr(self.model, "score_tolerance", None)

    def _is_first(self, method: str, has_several_lengths: bool = False) -> bool:
        """Return whether this is the first call of a method, or its first with texts of several lengths."""
        is_first = (method, has_several_lengths) not in self._compared
        self._compared |= {(method, False), (method, has_several_lengths)}
        return is_first


def _read_images(numbers: Sequence[int], remaining: Iterator[tuple[int, Any]], images: dict[int, Any]) -> int:
    """Read the images of pairs into `images` until they take 256 MB; return the number of pairs, at least 1.

    Args:
        numbers: number of the image of each pair, ascending.
        remaining: numbers and images that were not read yet.
        images: images by number.
    """
    for count, number in enumerate(numbers):
        while number not in images:
            read_number, image = next(remaining)
            images[read_number] = image
        if count and sum(map(size_in_memory, images.values())) > MOST_BYTES:
            return count
    return len(numbers)
