"""Test one training step: frozen parameters, communication of a mesh, and residuals of a backward pass."""

import dataclasses
import re
import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints.parameters import parameter_shapes, parameters_of
from rococo_jax.losses import active_fields
from rococo_jax.models import ConvNextSpec, DualEncoder, ResNetSpec, fsdp
from rococo_jax.runtime import make_mesh
from rococo_jax.training.batch import Batch, Images, Texts
from rococo_jax.training.config import default_config
from rococo_jax.training.freezing import join_parameters
from rococo_jax.training.init import random_parameters, with_residual_heads
from rococo_jax.training.step import add_on_device, host_batch_shapes, lower_step, make_embed
from tests.support.tiny import drawn_parameters, tiny_encoder, tiny_spec
from tests.support.tiny_runs import changed, mesh_of

PAIRS, TOKENS = 16, 12
PAIRS_ALONE = {f"losses__{name}__weight": 0.0 for name in ("sc", "vc", "hard_positives")}


def make_config(**overrides):
    settings = {"batch_size": PAIRS, "steps": 10, "losses__sc__weight": 1.0, "losses__vc__weight": 0.5}
    settings |= {"losses__hard_positives__weight": 0.5, "losses__vc__partner_group": 2}
    return changed(default_config(), **{**settings, **overrides})


def test_stacks_are_joined_in_the_order_of_their_parameters():
    """The program is then the same in every process, so that a cached one is found."""
    frozen = {letter: jax.ShapeDtypeStruct((1, size), jnp.float32) for size, letter in enumerate(string.ascii_letters)}
    program = jax.make_jaxpr(join_parameters)(frozen, frozen)
    joined = [each.outvars[0].aval.shape[1] for each in program.eqns if "concatenate" in str(each.primitive)]
    # JAX hands over dictionaries sorted.
    assert joined == [frozen[letter].shape[1] for letter in sorted(frozen)]


@pytest.mark.slow
def test_fsdp_gathers_parameters_and_no_activations(monkeypatch):
    monkeypatch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 256)
    encoder, mesh = tiny_encoder(), make_mesh(jax.devices()[:8], fsdp=4)
    config = make_config(remat="full", **{**PAIRS_ALONE, "losses__sc__weight": 1.0})
    # As BERT's 30,522 words over 8 devices, a vocabulary that does not divide.
    spec = dataclasses.replace(encoder.spec, text=dataclasses.replace(encoder.spec.text, vocabulary_size=301))
    program = lower_step(config, spec, encoder.preprocessing, mesh, TOKENS).compile().as_text()
    moved = re.findall(r"= \(?\w+\[([\d,]*)\].* (all-gather|all-to-all|collective-permute)(?:-start)?\(", program)
    assert sum(kind == "all-gather" for _, kind in moved) > 20
    # Rows of tokens, 17 of an image and 12 of a text, stay where they are; (17, 32) are the positions, a parameter.
    shapes = [shape.split(",") for shape, _ in moved]
    assert not [shape for shape in shapes if len(shape) > 2 and {"17", "12"} & set(shape)]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("micro_batches", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_parameters_outside_the_blocks_are_gathered_once_per_step(micro_batches, monkeypatch):
    monkeypatch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 256)
    encoder, mesh = tiny_encoder(), make_mesh(jax.devices()[:8], fsdp=4)
    config = make_config(micro_batches=micro_batches, **PAIRS_ALONE)
    program = lower_step(config, encoder.spec, encoder.preprocessing, mesh, TOKENS).compile().as_text()
    words = f"{encoder.spec.text.vocabulary_size},{encoder.spec.text.width}"
    assert len(re.findall(rf"= f32\[{words}\].* all-gather\(", program)) == 1


def tower_batch_shapes(config, spec, tokens: int):
    """The shapes of a batch as the towers read it, with the fields and patches that the device adds."""
    on_host, step = host_batch_shapes(config, spec, tokens), jax.ShapeDtypeStruct((), jnp.int32)
    return jax.eval_shape(lambda batch, step: add_on_device(batch, config, spec, step, mesh_of(1)), on_host, step)


def bytes_kept(config, spec, rows: int) -> int:
    """Return bytes of the residuals of the towers' backward pass, before the compiler fuses anything."""
    config.batch_size = rows
    shapes = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in parameter_shapes(spec).items()}
    embed, fields = make_embed(config, spec, tiny_encoder().preprocessing, mesh_of(1)), active_fields(config.losses)

    def residuals(copies, batch):
        return jax.vjp(lambda copies: embed(copies, {}, batch.for_towers(fields), fields), copies)[1]

    copies = jax.eval_shape(lambda shapes: fsdp.copy_parameters(shapes, mesh_of(1)), shapes)
    kept = jax.eval_shape(residuals, copies, tower_batch_shapes(config, spec, TOKENS))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


@pytest.mark.slow
def test_rematerialisation_reduces_the_bytes_that_are_stored_for_the_backward_pass():
    layers, tokens, width = 12, 14 * 14 + 1, 768
    vision = dataclasses.replace(
        tiny_spec().vision, image_size=224, patch_size=16, width=width, layers=layers, heads=12, mlp_width=4 * width
    )
    spec = dataclasses.replace(tiny_spec(), vision=vision)
    kept = {}
    for remat, dropout in (("none", 0.0), ("dots", 0.0), ("full", 0.0), ("full", 0.5)):
        config = make_config(dtype="bfloat16", remat=remat, patch_dropout=dropout, **PAIRS_ALONE)
        name = "half of the patches" if dropout else remat
        kept[name] = bytes_kept(config, spec, rows=2) - bytes_kept(config, spec, rows=1)
    # Residuals of a block in bfloat16: its input alone, and its products with parameters (3 + 1 + 4 widths).
    block = 2 * tokens * width * layers
    rest = kept["full"] - block
    assert 0 < rest < 0.5 * block  # before and after the blocks, and the small text tower
    assert kept["dots"] - rest == pytest.approx(9 * block, rel=0.02)  # 33 MB
    # 92 MB by the backward pass that JAX derives of attention, 157 MB with those of norms and activations.
    assert 70e6 < kept["none"] < 80e6
    # Half of what the blocks keep, and of the rest at most half.
    assert 0.5 * block < kept["full"] - kept["half of the patches"] < 0.5 * kept["full"]


CONVOLUTIONAL = {
    "convnext": ConvNextSpec(32, (8, 16, 16, 32), (2, 2, 2, 2), 1e-6),
    "resnet": ResNetSpec(image_size=32, width=8, stage_layers=(2, 2, 1, 1), heads=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnext", pytest.param("resnet", marks=pytest.mark.thorough)])
def test_convolutional_blocks_are_rematerialised_and_gathered_as_transformer_blocks_are(name, monkeypatch):
    monkeypatch.setattr(fsdp, "LEAST_SHARDED", 256)
    spec = dataclasses.replace(tiny_spec(), vision=CONVOLUTIONAL[name])
    kept = [bytes_kept(make_config(remat=remat, **PAIRS_ALONE), spec, rows=2) for remat in ("full", "dots", "none")]
    assert kept[0] < kept[1] < kept[2]
    mesh, config = make_mesh(jax.devices()[:2], fsdp=2), make_config(fsdp=2, train__text="none", **PAIRS_ALONE)
    config.losses.vc.partner_group = 8
    program = lower_step(config, spec, tiny_encoder().preprocessing, mesh, TOKENS).as_text()
    gathered = set(re.findall(r"stablehlo.all_gather.* -> tensor<([^>]+)>", program))
    in_stages = [shape for path, shape in parameter_shapes(spec).items() if ".blocks." in path and "vision." in path]
    sharded = [shape[1:] for shape in in_stages if tuple(fsdp.partition_of(".blocks.", shape, 2))]
    assert len(sharded) >= 4
    assert {"x".join(map(str, shape)) + "xf32" for shape in sharded} <= gathered


@pytest.mark.slow
@pytest.mark.thorough
def test_gradients_of_a_convolutional_tower_do_not_depend_on_rematerialisation_or_shards(monkeypatch):
    monkeypatch.setattr(fsdp, "LEAST_SHARDED", 256)
    spec = dataclasses.replace(tiny_spec(), vision=ConvNextSpec(32, (8, 8, 8, 8), (2, 1, 1, 1), 1e-6))
    parameters = jax.tree.map(jnp.asarray, drawn_parameters(spec))
    pixels = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8))
    gradients = []
    for remat, shards in (("none", 1), ("full", 2)):
        mesh = make_mesh(jax.devices()[:shards], fsdp=shards)
        embed = make_embed(make_config(remat=remat, **PAIRS_ALONE), spec, tiny_encoder().preprocessing, mesh)
        texts = Texts(jnp.ones((2, TOKENS), jnp.int32), jnp.ones((2, TOKENS), bool))

        def loss(parameters, embed=embed, texts=texts, mesh=mesh):
            batch = Batch(Images(pixels), texts, None, {}, {})
            return embed(fsdp.copy_parameters(parameters, mesh), {}, batch, ())["images"][:, 0].sum()

        gradients.append(jax.jit(jax.grad(loss))(fsdp.place_parameters(parameters, mesh)))
    for path, gradient in gradients[0].items():
        largest = np.abs(gradient).max()
        # Rounding of sums in another order.
        np.testing.assert_allclose(gradients[1][path], gradient, atol=1e-5 * largest + 1e-12, err_msg=path)


def test_new_residual_heads_do_not_change_embeddings():
    encoder = tiny_encoder()
    grown = with_residual_heads(encoder, 24, seed=1)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    np.testing.assert_allclose(grown.encode_image(images), encoder.encode_image(images), atol=1e-6)
    assert isinstance(grown.model, DualEncoder)
    assert grown.spec.vision_head.hidden == 24


def test_a_new_model_is_initialised_in_shards_with_the_same_values_as_on_one_device(monkeypatch):
    monkeypatch.setattr(fsdp, "LEAST_SHARDED", 256)
    spec, mesh = tiny_spec(), make_mesh(fsdp=4)
    whole = parameters_of(DualEncoder(spec, rngs=nnx.Rngs(2)))
    made = random_parameters(spec, 2, mesh)
    assert made.keys() == whole.keys()
    on_one_device = 0
    for path, array in made.items():
        np.testing.assert_array_equal(array, whole[path])
        assert array.sharding.is_equivalent_to(fsdp.sharding_of(path, array.shape, mesh), array.ndim)
        on_one_device += array.addressable_shards[0].data.nbytes
    assert on_one_device < 0.5 * sum(array.nbytes for array in whole.values())
    heads = random_parameters(spec, 2, mesh, prefixes=("text_head.",))
    assert heads.keys() == {path for path in whole if path.startswith("text_head.")}
    for path, array in heads.items():
        np.testing.assert_array_equal(array, whole[path])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_sent_in_the_requested_dtype(dtype):
    """A CPU adds in float32 what is sent in bfloat16, so the program is read before it is compiled."""
    config, mesh = make_config(gradient_dtype=dtype, **PAIRS_ALONE), mesh_of(2)
    spec = tiny_spec()
    program = lower_step(config, spec, tiny_encoder().preprocessing, mesh, TOKENS).as_text()
    summed = re.findall(
        r"stablehlo.reduce.*applies stablehlo.add across dimensions = \[0\] : \(tensor<2x(.*?)>", program
    )
    short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    shapes = [
        "x".join([*map(str, shape), short]) for path, shape in parameter_shapes(spec).items() if "logit" not in path
    ]
    assert sorted(each for each in summed if each in shapes) == sorted(shapes)


def test_gradients_sent_in_bfloat16_are_off_by_at_most_the_rounding_of_each_addition():
    devices = 8
    mesh, copies = mesh_of(devices), np.random.default_rng(0).normal(size=(devices, 64, 32)).astype(np.float32)

    def total(dtype):
        _, backward = jax.vjp(
            lambda parameters: fsdp.copy_parameters(parameters, mesh, dtype), {"w": jnp.asarray(copies[0])}
        )
        return np.asarray(backward({"w": jnp.asarray(copies)})[0]["w"], np.float64)

    exact, magnitude = copies.sum(0, dtype=np.float64), np.abs(copies).sum(0, dtype=np.float64)
    np.testing.assert_allclose(total("float32"), exact, atol=1e-5)
    error = np.abs(total("bfloat16") - exact)
    # Every copy is rounded once, and every sum of copies; bfloat16 rounds by at most 2^-9 of a value.
    assert (error <= devices * 2**-9 * magnitude).all()
    assert error.max() > 2**-9
