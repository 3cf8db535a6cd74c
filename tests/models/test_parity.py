"""Towers give the vectors of `transformers`, through the whole path: saved, converted, written, loaded, encoded."""

import jax
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints import save_model
from rococo_jax.encoders import load_model
from rococo_jax.runtime import make_mesh
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import (
    TEXT,
    VISION,
    assert_same_vectors,
    bert,
    clip,
    dinov2,
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


def converted(reference, folder, **options):
    """The reference as a model of ours, by way of its folder."""
    return load_model(saved(reference, folder), mesh=make_mesh(jax.devices()[:1]), **options).model


CLIP_CASES = {
    "quick_gelu": {},
    "exact_gelu_one_layer_pixels_left_over": {
        "text": {"hidden_act": "gelu", "num_hidden_layers": 1, "hidden_size": 40, "num_attention_heads": 5},
        "vision": {"hidden_act": "gelu", "num_hidden_layers": 4, "image_size": 33, "patch_size": 8},
        "projection_dim": 7,
    },
    "tanh_gelu_one_head_large_eps": {
        "text": {"hidden_act": "gelu_new", "num_attention_heads": 1, "layer_norm_eps": 1e-2},
        "vision": {"hidden_act": "gelu_new", "num_attention_heads": 1, "layer_norm_eps": 1e-2, "patch_size": 6},
        "projection_dim": 33,
    },
    "end_of_text_in_the_middle_of_the_vocabulary": {"text": {"eos_token_id": 50}},
    "legacy_end_of_text_id": {"text": {"eos_token_id": 2}},
}


def metaclip_2():
    """Its end token has the id 2, under which a CLIP would be pooled at the highest id."""
    text = {**TEXT, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.MetaClip2Config(text_config=text, vision_config=VISION, projection_dim=16)
    return perturbed(transformers.MetaClip2Model(config), 5)


@pytest.mark.parametrize("case", [*CLIP_CASES, "metaclip_2"])
def test_clip_gives_the_reference_vectors(case, tmp_path):
    reference = metaclip_2() if case == "metaclip_2" else clip(**CLIP_CASES[case], seed=1)
    ours = converted(reference, tmp_path / "theirs")
    if case == "quick_gelu":  # through the whole path: written, loaded
        mesh = make_mesh(jax.devices()[:1])
        direct = load_model(tmp_path / "theirs", mesh=mesh)
        save_model(tmp_path / "ours", direct)
        loaded = load_model(tmp_path / "ours", mesh=mesh)
        assert loaded.provenance["weights_sha256"] == direct.provenance["weights_sha256"]
        assert loaded.provenance["format"] == "huggingface" and loaded.tokenizer is None
        assert loaded.preprocessing == direct.preprocessing
        ours = loaded.model
    end = reference.config.text_config.eos_token_id
    legacy = case == "legacy_end_of_text_id"
    ids, mask = random_texts(13, 98 if end == 2 else 99, 98 if legacy else end, padding=1)
    pixels = random_pixels(reference.config.vision_config.image_size)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    of_images, of_texts = pairs(ours, pixels, ids, mask)
    assert_same_vectors(of_images, output.image_embeds)
    assert_same_vectors(of_texts, output.text_embeds)
    assert float(ours.logit_scale[...]) == reference.logit_scale.item()
    assert ours.logit_bias is None


SIGLIP_CASES = {
    "plain": {},
    "other_sizes": {
        "text": {"num_hidden_layers": 1, "num_attention_heads": 8, "max_position_embeddings": 9, "vocab_size": 61},
        "vision": {"hidden_size": 40, "num_attention_heads": 5, "image_size": 31, "patch_size": 5},
    },
    "relu_and_exact_gelu": {"text": {"hidden_act": "relu"}, "vision": {"hidden_act": "gelu", "layer_norm_eps": 1e-2}},
}


@pytest.mark.parametrize("case", SIGLIP_CASES)
def test_siglip_gives_the_reference_vectors(case, tmp_path):
    reference = siglip(**SIGLIP_CASES[case], seed=2)
    ours = converted(reference, tmp_path / "theirs")
    length = reference.config.text_config.max_position_embeddings
    ids, _ = random_texts(length, reference.config.text_config.vocab_size, 5, padding=1)
    pixels = random_pixels(reference.config.vision_config.image_size)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    of_images, of_texts = pairs(ours, pixels, ids, np.ones(ids.shape, bool))
    assert_same_vectors(of_images, output.image_embeds)
    assert_same_vectors(of_texts, output.text_embeds)
    assert float(ours.logit_scale[...]) == reference.logit_scale.item()
    assert float(ours.logit_bias[...]) == reference.logit_bias.item()


DINOV2_CASES = {
    "plain": ({}, "mean"),
    "gated_mlp": ({"use_swiglu_ffn": True, "num_hidden_layers": 3}, "cls+mean"),
    "no_qkv_bias_odd_ratio": ({"qkv_bias": False, "mlp_ratio": 3, "patch_size": 7, "image_size": 37}, "cls"),
    "quick_gelu_large_eps": ({"hidden_act": "quick_gelu", "layer_norm_eps": 1e-2, "hidden_size": 36}, "cls+mean"),
}


@pytest.mark.parametrize("case", DINOV2_CASES)
def test_dinov2_gives_the_reference_vectors(case, tmp_path):
    changes, pooling = DINOV2_CASES[case]
    reference = dinov2(**changes, seed=3)
    ours = converted(reference, tmp_path, pooling=pooling)
    pixels = random_pixels(reference.config.image_size)
    with torch.no_grad():
        tokens = reference(torch_pixels(pixels)).last_hidden_state
    parts = {"cls": tokens[:, 0], "mean": tokens[:, 1:].mean(1)}
    expected = torch.cat([parts[name] for name in pooling.split("+")], dim=-1)
    run = nnx.jit(lambda model, pixels: (model.image_embeddings(pixels), model.image_features(pixels)))
    embeddings, features = run(ours, pixels)
    assert_same_vectors(embeddings, unit(expected))
    # Features have entries of order one, ten times those of unit vectors.
    np.testing.assert_allclose(features, expected.numpy(), rtol=0, atol=1e-3)


BERT_CASES = {
    "plain": ({}, "mean"),
    "other_sizes": ({"hidden_size": 45, "num_attention_heads": 5, "type_vocab_size": 1, "num_hidden_layers": 1}, "cls"),
    "relu_large_eps": ({"hidden_act": "relu", "layer_norm_eps": 1e-2, "num_hidden_layers": 4}, "mean"),
}


@pytest.mark.parametrize("case", BERT_CASES)
def test_bert_gives_the_reference_vectors(case, tmp_path):
    changes, pooling = BERT_CASES[case]
    reference = bert(**changes, seed=4)
    ours = converted(reference, tmp_path, pooling=pooling)
    ids, mask = random_texts(13, 99, 7)
    with torch.no_grad():
        tokens = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
    expected = tokens[:, 0] if pooling == "cls" else mean_pooled(tokens, mask)
    assert_same_vectors(texts(ours, ids, mask), unit(expected))


LONE_TOWERS = {
    "clip_image": lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VISION)),
    "clip_image_head": lambda: transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(**VISION, projection_dim=11)
    ),
    "clip_text": lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT)),
    "clip_text_head": lambda: transformers.CLIPTextModelWithProjection(
        transformers.CLIPTextConfig(**TEXT, projection_dim=11)
    ),
    "siglip_image": lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VISION)),
    "siglip_text": lambda: transformers.SiglipTextModel(transformers.SiglipTextConfig(**TEXT, projection_size=10)),
}


@pytest.mark.parametrize("name", LONE_TOWERS)
def test_a_lone_tower_gives_the_reference_vectors(name, tmp_path):
    family, side, *head = name.split("_")
    reference = perturbed(LONE_TOWERS[name]())
    ours = converted(reference, tmp_path)
    pixels, (ids, mask) = random_pixels(30), random_texts(13, 99, 98)
    with torch.no_grad():
        output = reference(torch_pixels(pixels) if side == "image" else torch_ids(ids))
    expected = output[f"{side}_embeds"] if head else output.pooler_output
    mask = mask | (family == "siglip")  # which sees its padding
    assert_same_vectors(images(ours, pixels) if side == "image" else texts(ours, ids, mask), unit(expected))
    assert (ours.text if side == "image" else ours.vision) is None


def _eager(model):
    """The reference returns attention weights only from its plain implementation."""
    model.set_attn_implementation("eager")
    return model


def _compare_attention(ours, theirs):
    # Softmax weights lie in [0, 1]; float32 sums in another order.
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-5)


def test_tokens_of_text_towers_are_the_reference_ones(tmp_path):
    ids, mask = random_texts(13, 99, 98)
    for name, model in (("clip", clip()), ("bert", bert())):
        ours = converted(model, tmp_path / name)
        reference = model.text_model if name == "clip" else model
        tokens = nnx.jit(lambda model, *x: model.text.tokens(*x))(ours, ids, mask)
        with torch.no_grad():
            output = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask).long())
        # Tokens have entries of order one and are not normalised.
        np.testing.assert_allclose(tokens[mask], output.last_hidden_state.numpy()[mask], rtol=0, atol=2e-4)


def test_tokens_and_last_attention_of_image_towers_are_the_reference_ones(tmp_path):
    pixels = random_pixels(30)
    for name, model in (("siglip", siglip()), ("dinov2", dinov2())):
        ours = converted(model, tmp_path / name)
        reference = _eager(model.vision_model if name == "siglip" else model)
        tokens, weights = nnx.jit(lambda model, pixels: model.vision.tokens_and_attention(pixels))(ours, pixels)
        with torch.no_grad():
            output = reference(torch_pixels(pixels), output_attentions=True)
        _compare_attention(weights, output.attentions[-1])
        np.testing.assert_allclose(tokens, output.last_hidden_state.numpy(), rtol=0, atol=2e-4)


@pytest.mark.parametrize(("family", "size"), [("clip", 47), ("siglip", 20), ("dinov2", 50), ("dinov2", 47)])
def test_another_image_size_gives_the_reference_vectors(family, size, tmp_path):
    model = {"clip": clip, "siglip": siglip, "dinov2": dinov2}[family]()
    ours = converted(model, tmp_path, image_size=size)
    pixels = random_pixels(size)
    with torch.no_grad():
        if family == "dinov2":
            expected = model(torch_pixels(pixels)).pooler_output
        else:
            output = model.get_image_features(torch_pixels(pixels), interpolate_pos_encoding=True)
            expected = output.pooler_output
    assert_same_vectors(images(ours, pixels), unit(expected))
