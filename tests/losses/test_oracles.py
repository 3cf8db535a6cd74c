"""Compare values and gradients of the contrastive losses with `transformers` (CLIP, SigLIP) on small models.

`transformers` computes in float32 too. The tolerance, 1e-5 of the largest element, is a few float32 roundings of logits
on either side (a rounding of a logit of 14 is 1e-6).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.losses import Embeddings, sigmoid_contrastive, softmax_contrastive
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits
from tests.support import dense_reference as dense
from tests.support.reference_models import clip, siglip, torch

pytestmark = pytest.mark.quick  # the tolerance holds however the programs are compiled
TOLERANCE = 1e-5
PAIRS = 11


def run_reference(model, **scalars):
    """Return the model's own loss of random pairs, its embeddings and scalars, and the gradients for these."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in scalars.items():
            getattr(model, name).fill_(value)
    pixels, ids = torch.randn(PAIRS, 3, 30, 30), torch.randint(3, 90, (PAIRS, 13))
    ids[:, -1] = 98
    output = model(input_ids=ids, pixel_values=pixels, return_loss=True)
    leaves = [output.image_embeds, output.text_embeds, *(getattr(model, name) for name in scalars)]
    for leaf in leaves:
        leaf.retain_grad()
    output.loss.backward()
    return output.loss.item(), [leaf.detach().numpy() for leaf in leaves], [leaf.grad.numpy() for leaf in leaves]


def of_clip(images, texts, log_scale, logits):
    return softmax_contrastive(Embeddings(images, texts, jnp.arange(PAIRS), jnp.exp(log_scale)), logits)


def of_siglip(images, texts, log_scale, bias, logits):
    return sigmoid_contrastive(Embeddings(images, texts, jnp.arange(PAIRS), jnp.exp(log_scale), bias), logits)


@pytest.mark.parametrize(
    ("model", "scalars", "ours"),
    [(clip, {"logit_scale": 2.66}, of_clip), (siglip, {"logit_scale": 2.3, "logit_bias": -5.0}, of_siglip)],
    ids=["CLIP", "SigLIP"],
)
def test_loss_and_gradients_match_transformers(model, scalars, ours):
    loss, inputs, expected = run_reference(model(), **scalars)
    inputs[2:] = [scalar.reshape(()) for scalar in inputs[2:]]
    function = jax.jit(jax.value_and_grad(ours, range(len(inputs))), static_argnums=len(inputs))
    found, gradients = function(*inputs, ShardedLogits(make_mesh()))
    assert abs(float(found) / loss - 1) < TOLERANCE
    for gradient, right in zip(gradients, expected, strict=True):
        assert dense.relative_error(gradient, right.reshape(np.shape(gradient))) < TOLERANCE
