"""Test promises of the towers in addition to parity: padding, precision, image sizes, depth and memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from flax import nnx

from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, HeadSpec, ModelSpec, ResNetSpec, TextSpec, VisionSpec, parameter_counts
from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.models.positions import positions_on_grid
from tests.support.cases import further
from tests.support.random_inputs import random_pixels, random_texts
from tests.support.refusals import refused
from tests.support.tiny import drawn_parameters

pytestmark = pytest.mark.quick
VISION = VisionSpec(
    image_size=30, patch_size=10, width=24, layers=3, heads=3, mlp_width=40, activation="gelu", norm_eps=1e-5,
    class_token=True, patch_bias=True, norm_before_blocks=False, layer_scale=True, pooling="cls+mean",
)  # fmt: skip
TEXT = TextSpec(
    vocabulary_size=99, context_length=40, width=32, layers=3, heads=4, mlp_width=48, activation="quick_gelu",
    norm_eps=1e-5, attention="causal", norm_after_blocks=False, pooling="first_eos", eos_id=98,
)  # fmt: skip
BERT = dataclasses.replace(TEXT, attention="masked", norm_after_blocks=True, pooling="mean", token_types=2)
SPEC = ModelSpec(VISION, TEXT, HeadSpec("linear", 16), HeadSpec("linear", 16, bias=True))
RESNET = ModelSpec(ResNetSpec(64, 8, (1, 1, 3, 1), heads=4), None, HeadSpec("linear", 16, bias=True))

texts = nnx.jit(lambda model, ids, mask: model.text_embeddings(ids, mask))
images = nnx.jit(lambda model, pixels: model.image_embeddings(pixels))


@functools.lru_cache
def model_of(spec: ModelSpec, dtype: str = "float32") -> DualEncoder:
    """Random parameters, no bias zero and no norm one."""
    return build_model(spec, drawn_parameters(spec), dtype)


@pytest.mark.parametrize("padding", [0, 1, 98])
@pytest.mark.parametrize("pooling", further(["first_eos", "highest_id", "mean", "cls"], ("first_eos", "mean")))
def test_a_text_embedding_does_not_depend_on_padding(pooling, padding):
    changes = {"first_eos": {}, "highest_id": {"eos_id": None}}
    spec = dataclasses.replace(TEXT if pooling in changes else BERT, pooling=pooling, **changes.get(pooling, {}))
    model = model_of(ModelSpec(None, spec))
    ids, mask = random_texts(11, 99, 98, padding=padding)
    short = texts(model, ids, mask)
    for length in (12, 40):
        extra = ((0, 0), (0, length - 11))
        longer = texts(model, np.pad(ids, extra, constant_values=padding), np.pad(mask, extra))
        # Matrix products of another shape may sum in another order: a few units in the last place of a unit vector.
        np.testing.assert_allclose(longer, short, rtol=0, atol=2e-6)


def test_a_bag_of_words_embeds_every_order_of_words_alike():
    model = model_of(ModelSpec(None, dataclasses.replace(BERT, attention="bag")))
    ids, mask = random_texts(11, 99, 98)
    mask = np.ones_like(mask)
    order = np.random.default_rng(0).permutation(ids.shape[1])
    # A mean of the same vectors in another order: a few units in the last place of a unit vector.
    np.testing.assert_allclose(texts(model, ids[:, order], mask), texts(model, ids, mask), rtol=0, atol=2e-6)
    other = ids.copy()
    other[:, 0] = (other[:, 0] + 1) % 98
    assert np.abs(texts(model, other, mask) - texts(model, ids, mask)).max() > 1e-3


def test_texts_and_pixels_of_another_size_are_refused():
    full = dataclasses.replace(TEXT, attention="full", pooling="last", eos_id=None)  # which sees its padding
    for text, tokens in ((TEXT, 41), (full, 39)):
        with pytest.raises(ValueError, match=f"{tokens} tokens for a text tower of 40"):
            texts(model_of(ModelSpec(None, text)), np.zeros((1, tokens), np.int32), np.ones((1, tokens), bool))
    with pytest.raises(ValueError, match="31 x 31 for a tower of 30 x 30"):
        images(model_of(SPEC), random_pixels(31))


def test_texts_of_padding_alone_have_finite_embeddings():
    model = model_of(ModelSpec(None, BERT))
    assert np.isfinite(texts(model, np.zeros((2, 5), np.int32), np.zeros((2, 5), bool))).all()


@pytest.mark.parametrize("spec", [SPEC, pytest.param(RESNET, marks=pytest.mark.slow)], ids=["transformers", "resnet"])
def test_bfloat16_computation_keeps_float32_parameters_and_similar_embeddings(spec):
    exact, fast = model_of(spec), model_of(spec, "bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(fast))} == {jnp.dtype("float32")}
    inputs = [(images, random_pixels(spec.vision.image_size))]
    inputs += [(texts, *random_texts(11, 99, 98))] if spec.text else []
    for embed, *given in inputs:
        ours, reference = embed(fast, *given), embed(exact, *given)
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=0, atol=1e-6)
        cosine = (np.asarray(ours) * np.asarray(reference)).sum(1)
        # bfloat16 keeps 8 bits: relative errors of 0.4 % an operation, so angles of a few hundredths.
        assert cosine.min() > 0.995
        assert np.abs(ours - reference).max() > 1e-5  # or bfloat16 was never used


def clips_positions(tensor, size):
    """The reference's rule for a grid of any size, 7 here, and patches of one pixel."""
    import torch
    import transformers
    from transformers.models.clip.modeling_clip import CLIPVisionEmbeddings

    side = round((len(tensor) - 1) ** 0.5)
    config = transformers.CLIPVisionConfig(hidden_size=4, num_attention_heads=1, image_size=side, patch_size=1)
    embeddings = CLIPVisionEmbeddings(config).double()
    embeddings.position_embedding.weight.data = tensor
    return embeddings.interpolate_pos_encoding(torch.zeros(1, size**2 + 1, 4), size, size)[0].detach()


def open_clips_positions(tensor, size):
    """`resize_pos_embed` of open_clip/model.py."""
    import torch

    side = round((len(tensor) - 1) ** 0.5)
    square = tensor[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    square = torch.nn.functional.interpolate(square, size=(size, size), mode="bicubic", antialias=True)
    return torch.cat([tensor[:1], square.permute(0, 2, 3, 1).reshape(size * size, -1)])


def big_visions_positions(tensor, size):
    """`resample_posemb` of models/vit.py, beside a class token."""
    import torch

    side = round((len(tensor) - 1) ** 0.5)
    grid = tensor[1:].numpy().reshape(side, side, -1)
    grid = scipy.ndimage.zoom(grid, (size / side, size / side, 1), order=1)
    return torch.cat([tensor[:1], torch.from_numpy(grid).reshape(size * size, -1)])


@pytest.mark.parametrize(("size_in", "size_out"), [(7, 16), (16, 7), (16, 15), (5, 5), (2, 9), (37, 16)])
@pytest.mark.parametrize(
    ("rule", "reference"),
    [("bicubic", clips_positions), ("antialiased", open_clips_positions), ("linear", big_visions_positions)],
)
def test_positions_are_interpolated_as_in_their_source_library(rule, reference, size_in, size_out):
    torch = pytest.importorskip("torch")
    positions = np.random.default_rng(0).normal(size=(1 + size_in**2, 4))
    vision = dataclasses.replace(SPEC.vision, image_size=size_out * SPEC.vision.patch_size, position_rule=rule)
    ours = positions_on_grid(jnp.asarray(positions, jnp.float32), vision)
    assert ours.dtype == np.float32
    # Ours in float32, theirs in float64; numbers up to 4.
    np.testing.assert_allclose(ours, reference(torch.from_numpy(positions), size_out), rtol=0, atol=4e-6)


def test_the_compiled_program_does_not_grow_with_the_number_of_layers():
    def program(layers: int) -> str:
        spec = ModelSpec(dataclasses.replace(VISION, layers=layers), None)
        graph, state = abstract_model(spec)
        pixels = jax.ShapeDtypeStruct((2, 30, 30, 3), jnp.float32)
        return jax.jit(lambda s, x: nnx.merge(graph, s).image_embeddings(x)).lower(state, pixels).as_text()

    assert program(24).count("\n") == program(3).count("\n")


def test_parameter_counts_match_the_sizes_of_arrays():
    counts = parameter_counts(SPEC)
    state = nnx.to_pure_dict(nnx.state(model_of(SPEC)))
    for part in ("vision", "text", "vision_head", "text_head"):
        assert counts[part] == sum(leaf.size for leaf in jax.tree.leaves(state[part]))


def test_a_spec_is_the_same_after_writing_and_reading_json():
    for spec in (SPEC, RESNET, ModelSpec(VISION, None), ModelSpec(None, BERT, text_head=HeadSpec("linear", 5))):
        assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("spec", "change", "field"),
    [
        (SPEC, {"width": "24"}, "vision.width"),
        (SPEC, {"width": True}, "vision.width"),
        (SPEC, {"pooling": "max"}, "vision.pooling"),
        (SPEC, {"colour": 1}, "vision"),
        (SPEC, {"heads": 5}, "heads"),
        *((RESNET, {"stage_layers": layers}, "vision.stage_layers")
          for layers in ([1, 2, 3], [1, 2, 3, "4"], "1234", [0, 1, 1, 1])),
    ],
)  # fmt: skip
def test_an_invalid_spec_is_refused(spec, change, field):
    value = spec.to_json()
    value["vision"].update(change)
    with pytest.raises(InputError) as caught:
        ModelSpec.from_json(value, "model.json")
    assert caught.value.field == field


def test_incompatible_fields_of_a_spec_are_refused():
    refused("images in 16 and texts in 17", ModelSpec, VISION, TEXT, HeadSpec("linear", 16), HeadSpec("linear", 17))
    refused("bag of words", dataclasses.replace, TEXT, attention="bag")  # which has no last token to pool
