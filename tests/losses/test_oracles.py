"""The losses beside those of `transformers` (CLIP, SigLIP) and torch: values and gradients, through small models.

`transformers` computes in float32 too. The tolerance, 1e-5 of the largest element, is a few float32 roundings of logits
on either side (a rounding of a logit of 14 is 1e-6).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers

from rococo_jax.losses import semantic_contrastive, sigmoid_contrastive, softmax_contrastive
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits
from tests.support import dense_reference as dense

torch = pytest.importorskip("torch", reason="the losses of transformers run on torch")

pytestmark = pytest.mark.quick  # the tolerance holds however the programs are compiled
TOLERANCE = 1e-5
PAIRS = 11
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**TOWER, "vocab_size": 50, "max_position_embeddings": 8}
VISION = {**TOWER, "image_size": 16, "patch_size": 8}


def run_reference(model):
    """The model's own loss for random pairs, its embeddings, and the loss's gradients in embeddings, scale, bias."""
    torch.manual_seed(0)
    pixels, ids = torch.randn(PAIRS, 3, 16, 16), torch.randint(3, 40, (PAIRS, 8))
    ids[:, -1] = 49
    output = model.eval()(input_ids=ids, pixel_values=pixels, return_loss=True)
    leaves = [output.image_embeds, output.text_embeds]
    for leaf in leaves:
        leaf.retain_grad()
    output.loss.backward()
    return output.loss.item(), [leaf.detach().numpy() for leaf in leaves], [leaf.grad.numpy() for leaf in leaves]


@pytest.mark.parametrize("strategy", ["all_gather", "ring"])
def test_softmax_loss_is_that_of_clip(strategy):
    config = transformers.CLIPConfig(
        text_config={**TEXT, "eos_token_id": 49}, vision_config=VISION, projection_dim=16, logit_scale_init_value=2.66
    )
    model = transformers.CLIPModel(config)
    loss, embeddings, gradients = run_reference(model)
    log_scale = model.logit_scale
    similarities = ShardedLogits(make_mesh(), strategy)

    def ours(images, texts, log_scale):
        return softmax_contrastive(images, texts, logit_scale=jnp.exp(log_scale), similarities=similarities)

    found, found_gradients = jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(*embeddings, np.float32(log_scale.item()))
    assert abs(float(found) / loss - 1) < TOLERANCE
    for gradient, right in zip(found_gradients, [*gradients, log_scale.grad.numpy()], strict=True):
        assert dense.relative_error(gradient, right) < TOLERANCE


@pytest.mark.parametrize("strategy", ["all_gather", "ring"])
def test_sigmoid_loss_is_that_of_siglip(strategy):
    model = transformers.SiglipModel(transformers.SiglipConfig(text_config=TEXT, vision_config=VISION))
    with torch.no_grad():
        model.logit_scale.fill_(2.3)
        model.logit_bias.fill_(-5.0)
    loss, embeddings, gradients = run_reference(model)
    similarities = ShardedLogits(make_mesh(), strategy)

    def ours(images, texts, log_scale, bias):
        return sigmoid_contrastive(
            images, texts, logit_scale=jnp.exp(log_scale), logit_bias=bias, similarities=similarities
        )

    scalars = [np.float32(number.item()) for number in (model.logit_scale, model.logit_bias)]
    found, found_gradients = jax.jit(jax.value_and_grad(ours, (0, 1, 2, 3)))(*embeddings, *scalars)
    assert abs(float(found) / loss - 1) < TOLERANCE
    right = [*gradients, model.logit_scale.grad.numpy(), model.logit_bias.grad.numpy()]
    for gradient, wanted in zip(found_gradients, right, strict=True):
        assert dense.relative_error(gradient, wanted) < TOLERANCE


@pytest.mark.parametrize("scope", ["local", "global"])
def test_sc_is_the_cross_entropy_of_torch_over_the_caption_and_the_altered_ones(scope):
    random = torch.Generator().manual_seed(3)
    images, texts, altered = (
        torch.nn.functional.normalize(torch.randn(*shape, 16, generator=random, dtype=torch.float64), dim=-1)
        for shape in ((PAIRS,), (PAIRS,), (PAIRS, 2))
    )
    for leaf in (images, texts, altered):
        leaf.requires_grad_()
    own = torch.einsum("bd,bkd->bk", images, altered)
    negatives = own if scope == "local" else images @ altered.flatten(0, 1).T
    logits = 14.3 * torch.cat([(images * texts).sum(1, keepdim=True), negatives], dim=1)
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(PAIRS, dtype=torch.long))
    loss.backward()

    def ours(images, texts, altered):
        return semantic_contrastive(
            images, texts, altered, logit_scale=jnp.float32(14.3), scope=scope, similarities=ShardedLogits(make_mesh())
        )

    leaves = [leaf.detach().numpy().astype(np.float32) for leaf in (images, texts, altered)]
    found, gradients = jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(*leaves)
    assert abs(float(found) / loss.item() - 1) < TOLERANCE
    for gradient, leaf in zip(gradients, (images, texts, altered), strict=True):
        assert dense.relative_error(gradient, leaf.grad.numpy()) < TOLERANCE
