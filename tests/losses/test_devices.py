"""Every loss and all its gradients: the same on any number of devices, and as papers define it.

The reference (`tests/support/dense_reference.py`) is dense, in float64 and in torch, with gradients by autograd. The
tolerance, 2e-6 of the largest element of a gradient, is 17 float32 roundings. The batch of 21 pairs is a multiple
neither of the numbers of devices nor of the tile size. Several pairs show the same image, and some have no altered
caption, image or hard positive.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from ml_collections import ConfigDict

from rococo_jax import losses
from rococo_jax.losses import Embeddings, FieldEmbeddings
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits
from tests.support import dense_reference as dense

pytestmark = pytest.mark.quick  # the tolerance holds however the programs are compiled
TOLERANCE = 2e-6
PAIRS, ALTERED, WIDTH = 21, 2, 8
RANDOM = np.random.default_rng(5)


def unit_vectors(*shape):
    vectors = RANDOM.standard_normal((*shape, WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


# Arrays with respect to which a loss is differentiated, and masks and ids that select the pairs that count.
EMBEDDINGS = {
    "images": unit_vectors(PAIRS),
    "texts": unit_vectors(PAIRS),
    "altered_texts": unit_vectors(PAIRS, ALTERED),
    "mixed_images": unit_vectors(PAIRS, 1),
    "positive_texts": unit_vectors(PAIRS),
    "negative_texts": unit_vectors(PAIRS, 1),
    "logit_scale": np.float32(14.3),
    "logit_bias": np.float32(-4.2),
}
MASKS = {
    "ids": RANDOM.integers(0, 12, PAIRS).astype(np.int32),
    "altered_mask": RANDOM.random((PAIRS, ALTERED)) < 0.6,
    "mixed_mask": RANDOM.random((PAIRS, 1)) < 0.7,
    "positive_mask": RANDOM.random(PAIRS) < 0.7,
    "negative_mask": RANDOM.random((PAIRS, 1)) < 0.7,
}
SETTINGS = {scope: ConfigDict({"scope": scope, "negative_weight": 0.5}) for scope in ("local", "global")}
FIELDS = {
    "altered": "altered_texts",
    "mixed": "mixed_images",
    "positive": "positive_texts",
    "negative": "negative_texts",
}


def pairs_of(arrays) -> Embeddings:
    """Return the input of the losses."""
    fields = {field: FieldEmbeddings(arrays[name], arrays[f"{field}_mask"]) for field, name in FIELDS.items()}
    names = {name: arrays[name] for name in ("images", "texts", "logit_scale", "logit_bias")}
    return Embeddings(**names, image_id=arrays["ids"], fields=fields)


def part(loss, name, scope="global"):
    """Return a function that computes one of the logged parts of a loss."""
    return lambda pairs, logits: loss(pairs, SETTINGS[scope], logits)[1][name]


def with_columns(pairs, logits):
    return losses.softmax_contrastive(pairs, logits, pairs.fields["negative"])


# Our loss; the function of the reference, and its embeddings beside images and texts, masks and settings.
LOSSES = {
    "softmax": (losses.softmax_contrastive, "softmax_contrastive", "", "ids", {}),
    "softmax with negatives": (with_columns, "softmax_contrastive", "negative_texts", "ids negative_mask", {}),
    "sigmoid": (losses.sigmoid_contrastive, "sigmoid_contrastive", "logit_bias", "ids", {}),
    "SC global": (
        part(losses.semantic_contrastive, "sc"),
        *("semantic_contrastive", "altered_texts", "altered_mask", {"scope": "global"}),
    ),
    "SC local": (
        part(losses.semantic_contrastive, "sc", "local"),
        *("semantic_contrastive", "altered_texts", "altered_mask", {"scope": "local"}),
    ),
    "VC global": (
        part(losses.visual_contrastive, "vc"),
        *("visual_contrastive", "mixed_images", "mixed_mask", {"scope": "global"}),
    ),
    "VC local": (
        part(losses.visual_contrastive, "vc", "local"),
        *("visual_contrastive", "mixed_images", "mixed_mask", {"scope": "local"}),
    ),
    "hard positives": (
        part(losses.hard_positive_and_negative, "hard_positive"),
        *("hard_positive", "positive_texts", "ids positive_mask", {}),
    ),
    "hard negatives": (
        part(losses.hard_positive_and_negative, "hard_negative"),
        *("hard_negative", "negative_texts", "negative_mask", {}),
    ),
    "blind": (part(losses.blind_preference, "blind"), "blind_preference", "altered_texts", "ids altered_mask", {}),
    "grounding": (
        part(losses.grounding_contrastive, "grounding"),
        *("grounding_contrastive", "altered_texts", "ids altered_mask", {}),
    ),
}
# Every loss on eight devices (thorough: on one, two and four as well).
CASES = [(8, name) for name in LOSSES]
CASES += [pytest.param(count, name, marks=pytest.mark.thorough) for count in (1, 2, 4) for name in LOSSES]


def differentiated(name):
    """Return the embeddings with respect to which a loss is differentiated."""
    return {key: EMBEDDINGS[key] for key in ("images", "texts", *LOSSES[name][2].split(), "logit_scale")}


@functools.cache
def expected(name):
    _, function, _, masks, settings = LOSSES[name]
    return dense.value_and_gradients(
        function, differentiated(name), {key: MASKS[key] for key in masks.split()}, settings
    )


@functools.cache
def computed(device_count):
    """Compute value and gradients of every loss by one program."""
    logits = ShardedLogits(make_mesh(jax.devices()[:device_count]), block_rows=2)

    def one(name, arrays):
        loss = LOSSES[name][0]
        embeddings = {key: arrays[key] for key in differentiated(name)}
        return jax.value_and_grad(lambda embeddings: loss(pairs_of(arrays | embeddings), logits))(embeddings)

    return jax.jit(lambda arrays: {name: one(name, arrays) for name in LOSSES})(EMBEDDINGS | MASKS)


@pytest.mark.parametrize(("count", "name"), CASES)
def test_loss_and_gradients_are_the_same_on_any_number_of_devices(count, name):
    value, gradients = computed(count)[name]
    right, right_gradients = expected(name)
    assert abs(float(value) / right - 1) < TOLERANCE
    for key, gradient in zip(differentiated(name), right_gradients, strict=True):
        assert dense.relative_error(gradients[key], gradient) < TOLERANCE, key


def test_gradients_of_a_batch_of_a_thousand_pairs_match_their_closed_form():
    """Against the closed form: dL/dz = (softmax of rows + softmax of columns - 2 on the diagonal) / 2B."""
    pairs, width, scale = 1003, 256, 14.3
    random = np.random.default_rng(0)
    sides = random.standard_normal((2, pairs, width))
    images, texts = (sides / np.linalg.norm(sides, axis=-1, keepdims=True)).astype(np.float32)
    logits = scale * images.astype(np.float64) @ texts.T.astype(np.float64)
    rows, columns = (scipy.special.log_softmax(logits, axis) for axis in (1, 0))
    of_logits = (np.exp(rows) + np.exp(columns) - 2 * np.eye(pairs)) / (2 * pairs)
    wanted = scale * of_logits @ texts, scale * of_logits.T @ images, (of_logits * logits).sum() / scale

    def loss(images, texts, logit_scale):
        batch = Embeddings(images, texts, jnp.arange(pairs), logit_scale)
        return losses.softmax_contrastive(batch, ShardedLogits(make_mesh()))

    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(images, texts, np.float32(scale))
    assert abs(float(value) / -(np.trace(rows + columns) / (2 * pairs)) - 1) < TOLERANCE
    for found, right in zip(gradients, wanted, strict=True):
        assert dense.relative_error(found, right) < TOLERANCE
