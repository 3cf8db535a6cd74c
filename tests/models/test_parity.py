"""Towers give the vectors of `transformers`, through the whole path: saved, converted, written, loaded, encoded."""

import jax
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints import save_model
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.runtime import make_mesh
from tests.support.cases import further
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import (
    TEXT,
    VISION,
    assert_same_vectors,
    bert,
    clip,
    dinov2,
    dinov2_with_registers,
    dinov3,
    images,
    mean_pooled,
    pairs,
    perturbed,
    saved,
    siglip,
    texts,
    torch,
    torch_ids,
    torch_pixels,
    transformers,
    unit,
)

# No test here promises bits: the reference computes in another order.
pytestmark = pytest.mark.quick


def loaded(folder, **options) -> Encoder:
    return load_model(folder, mesh=make_mesh(jax.devices()[:1]), **options)


def converted(reference, folder, **options):
    """The reference as a model of ours, by way of its folder."""
    return loaded(saved(reference, folder), **options).model


def metaclip_2():
    """A model whose end token has the id 2, with which a CLIP would be pooled at the highest id."""
    text = {**TEXT, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.MetaClip2Config(text_config=text, vision_config=VISION, projection_dim=16)
    return perturbed(transformers.MetaClip2Model(config), 5)


# The model, its sizes, how many words texts have, and the token that ends them.
PAIRS = {
    "clip quick_gelu": (clip, {}, 99, 98),
    "clip exact_gelu_one_layer_pixels_left_over": (clip, {
        "text": {"hidden_act": "gelu", "num_hidden_layers": 1, "hidden_size": 40, "num_attention_heads": 5},
        "vision": {"hidden_act": "gelu", "num_hidden_layers": 4, "image_size": 33, "patch_size": 8},
        "projection_dim": 7,
    }, 99, 98),
    "clip tanh_gelu_one_head_large_eps": (clip, {
        "text": {"hidden_act": "gelu_new", "num_attention_heads": 1, "layer_norm_eps": 1e-2},
        "vision": {"hidden_act": "gelu_new", "num_attention_heads": 1, "layer_norm_eps": 1e-2, "patch_size": 6},
        "projection_dim": 33,
    }, 99, 98),
    "clip end_of_text_in_the_middle_of_the_vocabulary": (clip, {"text": {"eos_token_id": 50}}, 99, 50),
    "clip legacy_end_of_text_id": (clip, {"text": {"eos_token_id": 2}}, 98, 98),
    "metaclip_2": (metaclip_2, {}, 98, 2),
    "siglip": (siglip, {}, 99, 5),
    "siglip other_sizes": (siglip, {
        "text": {"num_hidden_layers": 1, "num_attention_heads": 8, "max_position_embeddings": 9, "vocab_size": 61},
        "vision": {"hidden_size": 40, "num_attention_heads": 5, "image_size": 31, "patch_size": 5},
    }, 61, 5),
    "siglip relu_and_exact_gelu": (siglip, {
        "text": {"hidden_act": "relu"}, "vision": {"hidden_act": "gelu", "layer_norm_eps": 1e-2},
    }, 99, 5),
}  # fmt: skip


# Sizes and settings that another tower here has, too: run with ROCOCO_THOROUGH=1.
REPEATED = (
    "clip tanh_gelu_one_head_large_eps", "siglip relu_and_exact_gelu", "dinov2", "dinov2 quick_gelu_large_eps",
    "registers gated_mlp", "dinov3 no_registers other_base", "bert relu_large_eps", "clip_image", "clip_text",
)  # fmt: skip
ALWAYS = (
    "clip quick_gelu", "metaclip_2", "siglip", "dinov2 gated_mlp", "registers", "dinov3", "bert",
    "clip_image_head", "siglip_text",
)  # fmt: skip


def marked(cases: dict) -> list:
    """Return the cases, with marks on those that do not always run."""
    marks = {case: [pytest.mark.thorough] * (case in REPEATED) + [pytest.mark.slow] for case in cases}
    return [case if case in ALWAYS else pytest.param(case, marks=marks[case]) for case in cases]


@pytest.mark.parametrize("case", marked(PAIRS))
def test_a_pair_of_towers_gives_the_embeddings_of_the_reference(case, tmp_path):
    make, sizes, vocabulary, end = PAIRS[case]
    reference = make(**sizes)
    ours = converted(reference, tmp_path)
    ids, mask = random_texts(reference.config.text_config.max_position_embeddings, vocabulary, end, padding=1)
    pixels = random_pixels(reference.config.vision_config.image_size)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    of_images, of_texts = pairs(ours, pixels, ids, mask | (make is siglip))  # which sees its padding
    assert_same_vectors(of_images, output.image_embeds)
    assert_same_vectors(of_texts, output.text_embeds)
    assert float(ours.logit_scale[...]) == reference.logit_scale.item()
    bias = None if ours.logit_bias is None else float(ours.logit_bias[...])
    assert bias == (reference.logit_bias.item() if make is siglip else None)


def test_a_converted_model_is_the_same_after_saving_and_loading(tmp_path):
    direct = loaded(saved(clip(), tmp_path / "theirs"))
    save_model(tmp_path / "ours", direct)
    again = loaded(tmp_path / "ours")
    assert again.provenance["weights_sha256"] == direct.provenance["weights_sha256"]
    assert again.provenance["format"] == "huggingface" and again.tokenizer is None
    assert again.preprocessing == direct.preprocessing
    assert_same_vectors(images(again.model, random_pixels(30)), images(direct.model, random_pixels(30)))


TOWERS = {
    "dinov2": (dinov2, {}, "mean"),
    "dinov2 gated_mlp": (dinov2, {"use_swiglu_ffn": True, "num_hidden_layers": 3}, "cls+mean"),
    "dinov2 no_qkv_bias_odd_ratio": (
        dinov2, {"qkv_bias": False, "mlp_ratio": 3, "patch_size": 7, "image_size": 37}, "cls",
    ),
    "dinov2 quick_gelu_large_eps": (
        dinov2, {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-2, "hidden_size": 36}, "cls+mean",
    ),
    "registers": (dinov2_with_registers, {}, "cls+mean"),
    "registers gated_mlp": (dinov2_with_registers, {"use_swiglu_ffn": True, "num_register_tokens": 1}, "mean"),
    "registers none": (dinov2_with_registers, {"num_register_tokens": 0, "qkv_bias": False}, "cls+mean"),
    "dinov3": (dinov3, {"hidden_act": "relu"}, "cls+mean"),
    "dinov3 gated_mlp no_bias": (
        dinov3, {"use_gated_mlp": True, "hidden_act": "silu", "query_bias": False, "value_bias": False}, "cls",
    ),
    "dinov3 no_registers other_base": (dinov3, {"num_register_tokens": 0, "rope_theta": 50.0}, "mean"),
    "bert": (bert, {}, "mean"),
    "bert other_sizes": (
        bert, {"hidden_size": 45, "num_attention_heads": 5, "type_vocab_size": 1, "num_hidden_layers": 1}, "cls",
    ),
    "bert relu_large_eps": (bert, {"hidden_act": "relu", "layer_norm_eps": 1e-2, "num_hidden_layers": 4}, "mean"),
}  # fmt: skip


@pytest.mark.parametrize("case", marked(TOWERS))
def test_a_tower_without_a_head_gives_the_pooled_tokens_of_the_reference(case, tmp_path):
    make, sizes, pooling = TOWERS[case]
    reference = make(**sizes, seed=3)
    ours = converted(reference, tmp_path, pooling=pooling)
    ids, mask = random_texts(13, 99, 7)
    pixels = random_pixels(getattr(reference.config, "image_size", 30))
    with torch.no_grad():
        if make is bert:
            tokens = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        else:
            tokens = reference(torch_pixels(pixels)).last_hidden_state
            before = 1 + getattr(reference.config, "num_register_tokens", 0)
            mask = np.tile(np.arange(tokens.shape[1]) >= before, (len(tokens), 1))
    parts = {"cls": tokens[:, 0], "mean": mean_pooled(tokens, mask)}
    expected = torch.cat([parts[name] for name in pooling.split("+")], dim=-1)
    if make is bert:
        embeddings = texts(ours, ids, mask)
    else:
        run = nnx.jit(lambda model, pixels: (model.image_embeddings(pixels), model.image_features(pixels)))
        embeddings, features = run(ours, pixels)
        # Features have entries of order one, ten times those of unit vectors.
        np.testing.assert_allclose(features, expected.numpy(), rtol=0, atol=1e-3)
    assert_same_vectors(embeddings, unit(expected), 1e-5)


LONE_TOWERS = {
    "clip_image": (transformers.CLIPVisionModel, transformers.CLIPVisionConfig, VISION),
    "clip_image_head": (
        transformers.CLIPVisionModelWithProjection, transformers.CLIPVisionConfig, VISION | {"projection_dim": 11},
    ),
    "clip_text": (transformers.CLIPTextModel, transformers.CLIPTextConfig, TEXT),
    "clip_text_head": (
        transformers.CLIPTextModelWithProjection, transformers.CLIPTextConfig, TEXT | {"projection_dim": 11},
    ),
    "siglip_image": (transformers.SiglipVisionModel, transformers.SiglipVisionConfig, VISION),
    "siglip_text": (transformers.SiglipTextModel, transformers.SiglipTextConfig, TEXT | {"projection_size": 10}),
}  # fmt: skip


@pytest.mark.parametrize("name", marked(LONE_TOWERS))
def test_a_single_tower_gives_the_embeddings_of_the_reference(name, tmp_path):
    family, side, *head = name.split("_")
    make, config, sizes = LONE_TOWERS[name]
    reference = perturbed(make(config(**sizes)))
    ours = converted(reference, tmp_path)
    pixels, (ids, mask) = random_pixels(30), random_texts(13, 99, 98)
    with torch.no_grad():
        output = reference(torch_pixels(pixels) if side == "image" else torch_ids(ids))
    expected = output[f"{side}_embeds"] if head else output.pooler_output
    mask = mask | (family == "siglip")  # which sees its padding
    assert_same_vectors(images(ours, pixels) if side == "image" else texts(ours, ids, mask), unit(expected))
    assert (ours.text if side == "image" else ours.vision) is None


@pytest.mark.parametrize("family", further(("clip", "bert"), ("clip",)))
def test_tokens_of_text_towers_match_the_reference(family, tmp_path):
    ids, mask = random_texts(13, 99, 98)
    model = clip() if family == "clip" else bert()
    tokens = nnx.jit(lambda model, *x: model.text.tokens(*x))(converted(model, tmp_path), ids, mask)
    reference = model.text_model if family == "clip" else model
    with torch.no_grad():
        output = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask).long())
    # Tokens have entries of order one and are not normalised.
    np.testing.assert_allclose(tokens[mask], output.last_hidden_state.numpy()[mask], rtol=0, atol=2e-4)


@pytest.mark.parametrize("family", further(("siglip", "dinov2"), ("siglip",)))
def test_tokens_and_last_attention_of_image_towers_match_the_reference(family, tmp_path):
    pixels = random_pixels(30)
    model = siglip() if family == "siglip" else dinov2()
    run = nnx.jit(lambda model, pixels: model.vision.tokens_and_attention(pixels))
    tokens, weights = run(converted(model, tmp_path), pixels)
    reference = model.vision_model if family == "siglip" else model
    reference.set_attn_implementation("eager")  # which alone returns weights
    with torch.no_grad():
        output = reference(torch_pixels(pixels), output_attentions=True)
    # Softmax weights lie in [0, 1]; float32 sums in another order.
    np.testing.assert_allclose(weights, output.attentions[-1].numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(tokens, output.last_hidden_state.numpy(), rtol=0, atol=2e-4)


REGISTERS = dinov2_with_registers


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (clip, 47), (REGISTERS, 20),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((siglip, 20), (dinov2, 50), (dinov3, 47))),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((dinov2, 47), (REGISTERS, 50))),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((REGISTERS, 47), (dinov3, 20))),
    ],
)  # fmt: skip
def test_other_image_sizes_give_the_embeddings_of_the_reference(make, size, tmp_path):
    model, pixels = make(), random_pixels(size)
    ours = converted(model, tmp_path, image_size=size)
    lone = make not in (clip, siglip)
    vectors = model if lone else lambda x: model.get_image_features(x, interpolate_pos_encoding=True)
    with torch.no_grad():
        expected = vectors(torch_pixels(pixels)).pooler_output
    assert_same_vectors(images(ours, pixels), unit(expected))
