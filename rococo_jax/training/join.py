"""A dual encoder from two single-modality towers: heads fitted in closed form on image-caption pairs.

Heads are a regularised canonical correlation analysis of two feature spaces. With centred features X (images) and Y
(texts) of n pairs, covariances C, and ridges r_x, r_y relative to the mean eigenvalue of each covariance (Hotelling
1936; the ridge after Vinod 1976):

    W_x = (C_xx + r_x I)^-1/2,   W_y = (C_yy + r_y I)^-1/2,   W_x C_xy W_y = U diag(rho) V^T
    image head  A = W_x U diag(rho)^p,   text head  B = W_y V diag(rho)^p

The power p weighs a direction by how well it correlates (Gong et al. 2014 use such weights for cross-modal retrieval).
r_x, r_y and p are chosen by cross-validation over images: the captions of one image are never split between folds.
All in float64 on the host: the matrices are as wide as the towers, the work is a few eigendecompositions.

The heads are fitted on all pairs. What compares every image with every text is computed on a sample, so that its memory
and time do not grow with the data: the recall of a fold on at most 2,000 of its images, the logit scale on at most
5,000 images, both with at most 10,000 texts. A sample is drawn with a fixed seed, and only where there are more images
or texts than that. No result depends on how the work is split into blocks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int
from scipy import linalg

from rococo_jax.data.training_images import TrainingImages, union
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, HeadSpec, ModelSpec
from rococo_jax.progress import progress

RIDGES = (1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
POWERS = (0.5, 1.0, 1.5, 2.0)
# The most images, of a fold and for the logit scale, and the most texts that are compared with each other.
HELD_OUT_IMAGES, SCALE_IMAGES, SAMPLED_TEXTS = 2_000, 5_000, 10_000
# Rows of similarities in memory at once.
_ROWS_AT_ONCE = 256
_SAMPLE_SEED = 0


@dataclass(frozen=True)
class Regularisation:
    """Ridges relative to the mean eigenvalue of each covariance, and the power of the correlations."""

    image_ridge: float
    text_ridge: float
    power: float


@dataclass(frozen=True)
class AffineHeads:
    """`x @ image_kernel + image_bias` and `y @ text_kernel + text_bias` are comparable by cosine."""

    image_kernel: Float[np.ndarray, "image_width dim"]
    image_bias: Float[np.ndarray, " dim"]
    text_kernel: Float[np.ndarray, "text_width dim"]
    text_bias: Float[np.ndarray, " dim"]
    correlations: Float[np.ndarray, " dim"]

    def project(self, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return unit vectors of image and text features."""
        heads = ((images, self.image_kernel, self.image_bias), (texts, self.text_kernel, self.text_bias))
        return tuple(_unit(features @ kernel + bias) for features, kernel, bias in heads)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class _Moments:
    """Means and covariances of image-caption pairs. All whiteners share the spectra of the two covariances:

    C_xx = P diag(l) P^T gives W_x = P diag(s) P^T, s = (l + r_x)^-1/2; C_yy = Q diag(m) Q^T gives W_y with t alike.
    The singular vectors of W_x C_xy W_y are P and Q times those of diag(s) P^T C_xy Q diag(t), so W_x U = P diag(s) L.
    """

    def __init__(self, images: np.ndarray, texts: np.ndarray, text_image: np.ndarray):
        pairs = np.bincount(text_image, minlength=len(images)).astype(np.float64)
        self.image_mean, self.text_mean = pairs @ images / pairs.sum(), texts.mean(axis=0)
        x, y = images - self.image_mean, texts - self.text_mean
        sums = np.zeros((len(images), texts.shape[1]))
        np.add.at(sums, text_image, y)
        self._spectra = [np.linalg.eigh(c) for c in ((x.T * pairs) @ x / pairs.sum(), y.T @ y / len(y))]
        self.image_basis, self.text_basis = (vectors for _, vectors in self._spectra)
        self._cross = self.image_basis.T @ (x.T @ sums / pairs.sum()) @ self.text_basis

    def solve(self, dim: int, image_ridge: float, text_ridge: float) -> tuple[np.ndarray, ...]:
        """Return the directions of images and texts in the bases of the covariances, and their correlations."""
        if dim > min(self._cross.shape):
            raise ValueError(f"dim {dim} is larger than the narrower feature space, {min(self._cross.shape)}")
        s, t = self._scales(0, image_ridge), self._scales(1, text_ridge)
        left, correlations, right = _svd(s[:, None] * self._cross * t)
        return s[:, None] * left[:, :dim], t[:, None] * right[:dim].T, correlations[:dim]

    def _scales(self, side: int, ridge: float) -> np.ndarray:
        values = self._spectra[side][0]
        return 1 / np.sqrt(np.maximum(values, 0.0) + ridge * values.mean())


def _svd(matrix: Float[np.ndarray, "rows columns"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decompose a matrix; of fewer images than features, LAPACK's faster algorithm may not converge."""
    try:
        return np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        return linalg.svd(matrix, full_matrices=False, lapack_driver="gesvd")


def fit_heads(
    images: Float[np.ndarray, "images image_width"],
    texts: Float[np.ndarray, "texts text_width"],
    text_image: Int[np.ndarray, " texts"],
    dim: int,
    regularisation: Regularisation,
) -> AffineHeads:
    """Fit both heads on all pairs. `text_image[j]` is the image that text j describes.

    Raises ValueError if `dim` is larger than the narrower of the two feature spaces.
    """
    moments = _Moments(images.astype(np.float64), texts.astype(np.float64), text_image)
    solution = moments.solve(dim, regularisation.image_ridge, regularisation.text_ridge)
    weight = solution[2] ** regularisation.power
    image_kernel, text_kernel = moments.image_basis @ solution[0] * weight, moments.text_basis @ solution[1] * weight
    biases = -moments.image_mean @ image_kernel, -moments.text_mean @ text_kernel
    return AffineHeads(image_kernel, biases[0], text_kernel, biases[1], solution[2])


def choose_regularisation(
    images: Float[np.ndarray, "images image_width"],
    texts: Float[np.ndarray, "texts text_width"],
    text_image: Int[np.ndarray, " texts"],
    dim: int,
    folds: int = 5,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda count: None,
    ridges: Sequence[float] = RIDGES,
    powers: Sequence[float] = POWERS,
) -> tuple[Regularisation, float]:
    """Cross-validate over images; return the best choice and its held-out score.

    The score is the mean of image-to-text and text-to-image R@1 (percent) within at most `HELD_OUT_IMAGES` of the
    held-out fold, averaged over folds. `on_progress` is called with the number of pairs of ridges that are done, of
    each fold.
    """
    images, texts = images.astype(np.float64), texts.astype(np.float64)
    fold_of_image = np.random.default_rng(seed).permutation(len(images)) % folds
    choices = [Regularisation(*each) for each in product(ridges, ridges, powers)]
    total = np.zeros(len(choices))
    for fold in range(folds):
        fitted, held_out = _split(images, texts, text_image, fold_of_image == fold)
        held_out = sample_pairs(*held_out, HELD_OUT_IMAGES)
        total += np.array(list(_scores_of_fold(fitted, held_out, dim, choices, on_progress))) / folds
    best = int(total.argmax())
    return choices[best], float(total[best])


def sample_pairs(
    images: np.ndarray, texts: np.ndarray, text_image: np.ndarray, max_images: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw at most `max_images` images and `SAMPLED_TEXTS` of their texts; keep their order.

    Only the numbers of images and texts decide which are drawn.
    """
    random = np.random.default_rng(_SAMPLE_SEED)
    is_chosen = np.ones(len(images), bool)
    if len(images) > max_images:
        is_chosen = np.zeros(len(images), bool)
        is_chosen[random.permutation(len(images))[:max_images]] = True
    rows = np.flatnonzero(is_chosen[text_image])
    if len(rows) > SAMPLED_TEXTS:
        rows = np.sort(random.permutation(rows)[:SAMPLED_TEXTS])
    new_index = np.cumsum(is_chosen) - 1
    return images[is_chosen], texts[rows], new_index[text_image[rows]]


def _scores_of_fold(
    fitted: tuple, held_out: tuple, dim: int, choices: Sequence[Regularisation], on_progress: Callable[[int], None]
) -> Iterator[float]:
    """Yield the mean R@1 of each choice on the held-out pairs; choices of the same ridges are neighbours."""
    moments = _Moments(*fitted)
    x = (held_out[0] - moments.image_mean) @ moments.image_basis
    y = (held_out[1] - moments.text_mean) @ moments.text_basis
    for ridges, choices_of_ridges in groupby(choices, key=lambda choice: (choice.image_ridge, choice.text_ridge)):
        image_directions, text_directions, correlations = moments.solve(dim, *ridges)
        sides = x @ image_directions, y @ text_directions
        for choice in choices_of_ridges:
            projected = (_unit(side * correlations**choice.power) for side in sides)
            yield _mean_recall_at_1(*projected, held_out[2])
        on_progress(1)


def _split(images, texts, text_image, held_out: np.ndarray) -> tuple[tuple, tuple]:
    parts = []
    for is_in_part in (~held_out, held_out):
        new_index = np.cumsum(is_in_part) - 1
        is_text_in_part = is_in_part[text_image]
        parts.append((images[is_in_part], texts[is_text_in_part], new_index[text_image[is_text_in_part]]))
    return tuple(parts)


def _mean_recall_at_1(images: np.ndarray, texts: np.ndarray, text_image: np.ndarray) -> float:
    # Of a sample: 2,000 images and 10,000 texts are 80 MB.
    similarities = images.astype(np.float32) @ texts.astype(np.float32).T
    image_to_text = text_image[similarities.argmax(axis=1)] == np.arange(len(images))
    text_to_image = similarities.argmax(axis=0) == text_image
    return 50.0 * (image_to_text.mean() + text_to_image.mean())


def fit_logit_scale(
    images: Float[np.ndarray, "images dim"],
    texts: Float[np.ndarray, "texts dim"],
    text_image: Int[np.ndarray, " texts"],
) -> float:
    """Return the logit scale from 1 to 100 with the lowest text-to-image cross-entropy of the given unit vectors.

    It is fitted on at most `SCALE_IMAGES` images, as `sample_pairs` draws them.
    """
    images, texts, text_image = sample_pairs(images, texts, text_image, SCALE_IMAGES)
    images, texts = images.astype(np.float64), texts.astype(np.float64)
    scales = np.geomspace(1.0, 100.0, 41)
    losses = np.zeros((len(scales), len(texts)))
    for start in range(0, len(texts), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(texts)))
        similarities = texts[rows] @ images.T
        top = similarities.max(axis=1, keepdims=True)
        right = similarities[np.arange(len(rows)), text_image[rows]]
        for losses_of_scale, scale in zip(losses, scales, strict=True):
            log_sums = np.log(np.exp(scale * (similarities - top)).sum(axis=1))
            losses_of_scale[rows] = log_sums + scale * (top[:, 0] - right)
    return float(scales[losses.mean(axis=1).argmin()])


_FOLDS = 5


def image_tower_of(encoder: Encoder) -> Encoder:
    """Return the image tower alone.

    A tower that is pooled by its class token and has no head of its own (DINOv2) is pooled by the class token beside
    the mean of the patch tokens: retrieval by a linear head gains from both.
    """
    vision = encoder.spec.vision
    if vision is None:
        raise InputError(encoder.name, "image tower", "none", "a model with an image tower")
    is_headless = vision.pooling == "cls" and encoder.spec.vision_head.kind == "none"
    spec = dataclasses.replace(vision, pooling="cls+mean" if is_headless else vision.pooling)
    tower = nnx.clone(encoder.model.vision)
    tower.spec = spec
    return _alone(encoder, ModelSpec(vision=spec, text=None), "vision", tower)


def text_tower_of(encoder: Encoder) -> Encoder:
    """Return the text tower alone, pooled as the model says."""
    if encoder.spec.text is None:
        raise InputError(encoder.name, "text tower", "none", "a model with a text tower")
    tower = nnx.clone(encoder.model.text)
    return _alone(encoder, ModelSpec(vision=None, text=encoder.spec.text), "text", tower)


def _alone(encoder: Encoder, spec: ModelSpec, kind: str, tower: nnx.Module) -> Encoder:
    model = nnx.eval_shape(lambda: DualEncoder(spec, rngs=nnx.Rngs(0), dtype=encoder.model.dtype))
    setattr(model, kind, tower)
    model.logit_scale = nnx.Param(jnp.zeros((), jnp.float32))
    preprocessing = encoder.preprocessing if kind == "vision" else None
    tokenizer = encoder.tokenizer if kind == "text" else None
    return encoder.with_model(model, preprocessing=preprocessing, tokenizer=tokenizer)


def join_towers(
    vision: Encoder,
    text: Encoder,
    image_features: Float[np.ndarray, "images image_width"],
    text_features: Float[np.ndarray, "texts text_width"],
    text_image: Int[np.ndarray, " texts"],
    dim: int,
    name: str,
    training_images: TrainingImages | None = None,
) -> tuple[Encoder, dict[str, Any]]:
    """Fit both heads; return the dual encoder and a record of the fit.

    Args:
        vision, text: towers alone (`image_tower_of`, `text_tower_of`).
        image_features, text_features: their pooled features of the training images and captions.
        text_image: the row of the image that each caption describes.
        dim: length of the joint embedding.
        name: name of the new model.
        training_images: those of the fit; the model has those of its towers, too.

    Raises InputError if `dim` does not fit the towers, there are too few images, or features are not finite.
    """
    widest = min(image_features.shape[1], text_features.shape[1])
    if not 1 <= dim <= widest:
        raise InputError("dim", "dimensions", dim, f"1 to {widest}, the narrower tower's width")
    if len(image_features) < 2 * _FOLDS:
        raise InputError("captions", "images", len(image_features), f"at least {2 * _FOLDS}, to cross-validate")
    for features, tower in ((image_features, vision.name), (text_features, text.name)):
        if not np.isfinite(features).all():
            raise InputError(tower, "features", "values that are not finite", "finite features")
    with progress("choosing the regularisation", _FOLDS * len(RIDGES) ** 2, "fits") as advance:
        regularisation, score = choose_regularisation(
            image_features, text_features, text_image, dim, folds=_FOLDS, on_progress=advance
        )
    heads = fit_heads(image_features, text_features, text_image, dim, regularisation)
    scale = fit_logit_scale(*heads.project(image_features, text_features), text_image)
    spec = ModelSpec(
        vision=vision.spec.vision,
        text=text.spec.text,
        vision_head=HeadSpec("linear", dim, bias=True),
        text_head=HeadSpec("linear", dim, bias=True),
    )
    model = nnx.eval_shape(lambda: DualEncoder(spec, rngs=nnx.Rngs(0), dtype=vision.model.dtype))
    model.vision, model.text = vision.model.vision, text.model.text
    for head, kernel, bias in (
        (model.vision_head, heads.image_kernel, heads.image_bias),
        (model.text_head, heads.text_kernel, heads.text_bias),
    ):
        head.kernel = nnx.Param(jnp.asarray(kernel, jnp.float32))
        head.bias = nnx.Param(jnp.asarray(bias, jnp.float32))
    model.logit_scale = nnx.Param(jnp.log(jnp.asarray(scale, jnp.float32)))
    record = {
        "method": "regularised CCA",
        "images": len(image_features),
        "captions": len(text_features),
        "dim": dim,
        **dataclasses.asdict(regularisation),
        "folds": _FOLDS,
        "held_out_recall_at_1": round(score, 3),
        "logit_scale": round(scale, 4),
    }
    provenance = {"joined": {"vision": vision.provenance, "text": text.provenance, "fit": record}}
    images = union(training_images, vision.training_images, text.training_images)
    return Encoder(model, vision.preprocessing, text.tokenizer, provenance, name, vision.mesh, images), record
