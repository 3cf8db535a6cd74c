"""Towers give the vectors of `transformers`, through the whole path: saved, converted, written, loaded, encoded."""

import jax
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints import convert_huggingface, save_model
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.runtime import make_mesh
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.reference_models import (
    TEXT,
    VISION,
    assert_same_vectors,
    bert,
    clip,
    dinov2,
    perturbed,
    saved,
    siglip,
    torch,
    torch_ids,
    torch_pixels,
    transformers,
    unit,
)

images = nnx.jit(lambda model, pixels: model.image_embeddings(pixels))
texts = nnx.jit(lambda model, ids, mask: model.text_embeddings(ids, mask))


def converted(reference, folder, **options):
    """The reference as a model of ours that has been through a model directory."""
    parts = convert_huggingface(saved(reference, folder / "theirs"), **options)
    mesh = make_mesh(jax.devices()[:1])
    save_model(folder / "ours", Encoder(*parts, mesh=mesh))
    return load_model(folder / "ours", mesh=mesh).model


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


@pytest.mark.parametrize("case", CLIP_CASES)
def test_clip_gives_the_reference_vectors(case, tmp_path):
    reference = clip(**CLIP_CASES[case], seed=1)
    ours = converted(reference, tmp_path)
    end = reference.config.text_config.eos_token_id
    ids, mask = random_texts(13, 98 if end == 2 else 99, 98 if end == 2 else end, padding=1)
    pixels = random_pixels(reference.config.vision_config.image_size)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    assert_same_vectors(images(ours, pixels), output.image_embeds)
    assert_same_vectors(texts(ours, ids, mask), output.text_embeds)
    assert float(ours.logit_scale[...]) == reference.logit_scale.item()
    assert ours.logit_bias is None


def test_metaclip_2_gives_the_reference_vectors(tmp_path):
    """Its end token has the id 2, under which a CLIP would be pooled at the highest id."""
    sizes = {"text_config": {**TEXT, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}, "vision_config": VISION}
    reference = perturbed(transformers.MetaClip2Model(transformers.MetaClip2Config(**sizes, projection_dim=16)), 5)
    ours = converted(reference, tmp_path)
    ids, mask = random_texts(13, 98, 2, padding=1)
    pixels = random_pixels(30)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    assert_same_vectors(images(ours, pixels), output.image_embeds)
    assert_same_vectors(texts(ours, ids, mask), output.text_embeds)


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
    ours = converted(reference, tmp_path)
    length = reference.config.text_config.max_position_embeddings
    ids, _ = random_texts(length, reference.config.text_config.vocab_size, 5, padding=1)
    pixels = random_pixels(reference.config.vision_config.image_size)
    with torch.no_grad():
        output = reference(torch_ids(ids), torch_pixels(pixels))
    assert_same_vectors(images(ours, pixels), output.image_embeds)
    assert_same_vectors(texts(ours, ids, np.ones(ids.shape, bool)), output.text_embeds)
    assert float(ours.logit_scale[...]) == reference.logit_scale.item()
    assert float(ours.logit_bias[...]) == reference.logit_bias.item()


DINOV2_CASES = {
    "plain": {},
    "gated_mlp": {"use_swiglu_ffn": True, "num_hidden_layers": 3},
    "no_qkv_bias_odd_ratio": {"qkv_bias": False, "mlp_ratio": 3, "patch_size": 7, "image_size": 37},
    "quick_gelu_large_eps": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-2, "hidden_size": 36},
}


@pytest.mark.parametrize(
    ("case", "pooling"), [("plain", "cls"), ("plain", "mean"), *((case, "cls+mean") for case in DINOV2_CASES)]
)
def test_dinov2_gives_the_reference_vectors(case, pooling, tmp_path):
    reference = dinov2(**DINOV2_CASES[case], seed=3)
    ours = converted(reference, tmp_path, pooling=pooling)
    pixels = random_pixels(reference.config.image_size)
    with torch.no_grad():
        tokens = reference(torch_pixels(pixels)).last_hidden_state
    parts = {"cls": tokens[:, 0], "mean": tokens[:, 1:].mean(1)}
    expected = torch.cat([parts[name] for name in pooling.split("+")], dim=-1)
    both = nnx.jit(lambda model, pixels: (model.image_embeddings(pixels), model.image_features(pixels)))
    embeddings, features = both(ours, pixels)
    assert_same_vectors(embeddings, unit(expected))
    # Features have entries of order one, ten times those of unit vectors.
    np.testing.assert_allclose(features, expected.numpy(), rtol=0, atol=1e-3)


BERT_CASES = {
    "plain": {},
    "other_sizes": {"hidden_size": 45, "num_attention_heads": 5, "type_vocab_size": 1, "num_hidden_layers": 1},
    "relu_large_eps": {"hidden_act": "relu", "layer_norm_eps": 1e-2, "num_hidden_layers": 4},
}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("case", BERT_CASES)
def test_bert_gives_the_reference_vectors(case, pooling, tmp_path):
    reference = bert(**BERT_CASES[case], seed=4)
    ours = converted(reference, tmp_path, pooling=pooling)
    ids, mask = random_texts(13, 99, 7)
    with torch.no_grad():
        tokens = reference(torch_ids(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
    weights = torch.from_numpy(mask).float()[..., None]
    expected = tokens[:, 0] if pooling == "cls" else (tokens * weights).sum(1) / weights.sum(1)
    assert_same_vectors(texts(ours, ids, mask), unit(expected))


def test_a_lone_clip_image_tower_gives_the_reference_vectors(tmp_path):
    for name, kind in (("bare", transformers.CLIPVisionModel), ("head", transformers.CLIPVisionModelWithProjection)):
        reference = perturbed(kind(transformers.CLIPVisionConfig(**VISION, projection_dim=11)))
        ours = converted(reference, tmp_path / name)
        pixels = random_pixels(30)
        with torch.no_grad():
            output = reference(torch_pixels(pixels))
        expected = output.pooler_output if name == "bare" else output.image_embeds
        assert_same_vectors(images(ours, pixels), unit(expected))
        assert ours.text is None


def test_a_lone_clip_text_tower_gives_the_reference_vectors(tmp_path):
    for name, kind in (("bare", transformers.CLIPTextModel), ("head", transformers.CLIPTextModelWithProjection)):
        reference = perturbed(kind(transformers.CLIPTextConfig(**TEXT, projection_dim=11)))
        ours = converted(reference, tmp_path / name)
        ids, mask = random_texts(13, 99, 98)
        with torch.no_grad():
            output = reference(torch_ids(ids))
        expected = output.pooler_output if name == "bare" else output.text_embeds
        assert_same_vectors(texts(ours, ids, mask), unit(expected))
        assert ours.vision is None


def test_lone_siglip_towers_give_the_reference_vectors(tmp_path):
    pixels, (ids, _) = random_pixels(30), random_texts(13, 99, 98)
    vision = perturbed(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**VISION)))
    text = perturbed(transformers.SiglipTextModel(transformers.SiglipTextConfig(**TEXT, projection_size=10)))
    with torch.no_grad():
        image_vectors, text_vectors = vision(torch_pixels(pixels)).pooler_output, text(torch_ids(ids)).pooler_output
    assert_same_vectors(images(converted(vision, tmp_path / "vision"), pixels), unit(image_vectors))
    ours = converted(text, tmp_path / "text")
    assert_same_vectors(texts(ours, ids, np.ones(ids.shape, bool)), unit(text_vectors))


def _eager(model):
    """The reference returns attention weights only from its plain implementation."""
    model.set_attn_implementation("eager")
    return model


def _compare_attention(ours, theirs):
    # Softmax weights lie in [0, 1]; float32 sums in another order.
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-5)


def test_tokens_and_last_attention_of_text_towers_are_the_reference_ones(tmp_path):
    ids, mask = random_texts(13, 99, 98)
    rows = mask[:, None].repeat(4, axis=1)  # queries that are tokens, in all four heads
    for name, model in (("clip", clip()), ("bert", bert())):
        ours = converted(model, tmp_path / name)
        reference = _eager(model.text_model if name == "clip" else model)
        tokens, weights = nnx.jit(lambda model, *inputs: model.text.tokens_and_attention(*inputs))(ours, ids, mask)
        alone = nnx.jit(lambda model, *inputs: model.text.tokens(*inputs))(ours, ids, mask)
        with torch.no_grad():
            options = {"attention_mask": torch.from_numpy(mask).long(), "output_attentions": True}
            output = reference(torch_ids(ids), **options)
        _compare_attention(np.asarray(weights)[rows], output.attentions[-1][rows])
        # Tokens have entries of order one and are not normalised.
        np.testing.assert_allclose(tokens[mask], output.last_hidden_state.numpy()[mask], rtol=0, atol=2e-4)
        np.testing.assert_allclose(tokens, alone, rtol=0, atol=1e-5)


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


@pytest.mark.parametrize("size", [50, 20, 47])
@pytest.mark.parametrize("family", ["clip", "siglip", "dinov2"])
def test_another_image_size_gives_the_reference_vectors(family, size, tmp_path):
    model = {"clip": clip, "siglip": siglip, "dinov2": dinov2}[family]()
    ours = load_model(saved(model, tmp_path / "theirs"), image_size=size, mesh=make_mesh(jax.devices()[:1])).model
    pixels = random_pixels(size)
    with torch.no_grad():
        if family == "dinov2":
            expected = model(torch_pixels(pixels)).pooler_output
        else:
            output = model.get_image_features(torch_pixels(pixels), interpolate_pos_encoding=True)
            expected = output.pooler_output
    assert_same_vectors(images(ours, pixels), unit(expected))
