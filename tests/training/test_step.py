"""One training step: the same on any mesh and in any number of parts; what is frozen stays, and costs no backward pass.

The towers here are float32. A gradient is compared by its largest element: sums over rows are taken in another order on
another mesh, and 1e-5 of the largest element is some hundred float32 roundings through two layers and the heads.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rococo_jax.checkpoints.parameters import build_model, parameter_shapes, parameters_of
from rococo_jax.losses import active_fields
from rococo_jax.losses.altered import ALTERED, MIXED
from rococo_jax.losses.contrastive import NEGATIVES
from rococo_jax.losses.hard_positives import POSITIVES
from rococo_jax.models import DualEncoder
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.batch import Batch, batch_from_arrays, place_batch
from rococo_jax.training.config import default_config
from rococo_jax.training.freezing import join_parameters, split_parameters
from rococo_jax.training.grad_cache import loss_and_gradients
from rococo_jax.training.init import with_residual_heads
from rococo_jax.training.inputs.mixed_images import step_key, with_mixed
from rococo_jax.training.objective import embed_batch, total_loss
from rococo_jax.training.optimizer import make_optimizer, make_schedule, rate_of
from rococo_jax.training.step import batch_shapes, lower_step, make_embed
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import changed, mesh_of

TOLERANCE = 1e-5
PAIRS, TOKENS = 16, 12
PAIRS_ALONE = {f"losses__{name}__weight": 0.0 for name in ("sc", "vc", "hard_positives")}


def make_config(**overrides):
    settings = {"batch_size": PAIRS, "steps": 10, "losses__sc__weight": 1.0, "losses__vc__weight": 0.5}
    settings |= {"losses__hard_positives__weight": 0.5, "losses__vc__partner_group": 2}
    return changed(default_config(), **{**settings, **overrides})


def make_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)

    def texts(*shape):
        lengths = rng.integers(3, TOKENS + 1, shape)
        mask = np.arange(TOKENS) < lengths[..., None]
        ids = np.where(mask, rng.integers(4, 100, (*shape, TOKENS)), 0)
        np.put_along_axis(ids, lengths[..., None] - 1, 2, axis=-1)  # ends with the end-of-text id
        return ids.astype(np.int32), mask

    batch = {
        "pixels": rng.integers(0, 256, (PAIRS, 32, 32, 3), np.uint8),
        "image_id": np.array([0, 0, *range(1, PAIRS - 1)], np.int32),  # one image with two captions
        "altered_valid": rng.random((PAIRS, 2)) < 0.8,
        "positive_valid": rng.random(PAIRS) < 0.8,
        "negative_valid": rng.random((PAIRS, 1)) < 0.8,
    }
    shapes = {"": (PAIRS,), "altered_": (PAIRS, 2), "positive_": (PAIRS,), "negative_": (PAIRS, 1)}
    for name, shape in shapes.items():
        batch[f"{name}ids"], batch[f"{name}text_mask"] = texts(*shape)
    return batch_from_arrays(batch, (ALTERED, POSITIVES, NEGATIVES))


def gradients_on(devices: int, parts: int = 1, kept: int = 1):
    """Loss, its parts and gradients, as NumPy arrays by path."""
    config, encoder, mesh = make_config(), tiny_encoder(), mesh_of(devices)
    trained, frozen = split_parameters(parameters_of(encoder.model), encoder.spec, config.train)
    logits, fields = ShardedLogits(mesh), active_fields(config.losses)

    @jax.jit
    def compute(trained, batch):
        def embed(trained, rows):
            model = build_model(encoder.spec, join_parameters(trained, frozen))
            return embed_batch(model, encoder.preprocessing, rows, fields)

        batch = with_mixed(batch, step_key(0, jnp.int32(3)), config.losses.vc, mesh)

        def loss(vectors, scales):
            return total_loss(vectors, scales, batch, config.losses, logits)

        return loss_and_gradients(embed, loss, trained, batch.for_towers(fields), parts=parts, kept=kept, mesh=mesh)

    return jax.device_get(compute(trained, place_batch(make_batch(), mesh)))


@pytest.fixture(scope="module")
def expected():
    return gradients_on(1)


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=TOLERANCE)
    assert found[1].keys() == expected[1].keys()
    assert found[2].keys() == expected[2].keys()
    for path, gradient in expected[2].items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(found[2][path], gradient, atol=TOLERANCE * scale, rtol=0, err_msg=path)


@pytest.mark.parametrize("devices", [8])
def test_loss_and_gradients_are_the_same_on_any_number_of_devices(devices, expected):
    assert_same(gradients_on(devices), expected)


@pytest.mark.thorough
@pytest.mark.parametrize(("devices", "parts", "kept"), [(1, 4, 1), (4, 2, 1), (1, 4, 3), (2, 4, 4)])
def test_the_gradient_cache_gives_the_gradients_of_the_whole_batch(devices, parts, kept, expected):
    assert_same(gradients_on(devices, parts, kept=kept), expected)


def test_every_part_of_the_loss_is_there_and_weighted(expected):
    parts = expected[1]
    assert set(parts) == {"contrastive", "sc", "vc", "hard_positive", "hard_negative"}
    weighted = parts["contrastive"] + parts["sc"] + 0.5 * parts["vc"]
    weighted += 0.5 * (parts["hard_positive"] + parts["hard_negative"])
    np.testing.assert_allclose(expected[0], weighted, rtol=1e-6)
    assert min(parts.values()) > 0.1


def flops_of(train) -> float:
    config = make_config(train__vision=train, train__text=train, **PAIRS_ALONE)
    lowered = lower_step(config, tiny_spec(), tiny_encoder().preprocessing, mesh_of(1), TOKENS)
    return lowered.cost_analysis()["flops"]


def test_frozen_towers_cost_no_backward_pass():
    # XLA counts a loop's body once, however many blocks it runs: only towers that are frozen whole can be compared.
    assert flops_of("none") < flops_of("all")


def test_resized_views_are_mixed_with_each_other_in_turn_with_the_cropped_ones():
    batch = make_batch()
    images = dataclasses.replace(batch.images, resized=255 - batch.images.pixels)
    batch = jax.tree.map(jnp.asarray, dataclasses.replace(batch, images=images))
    key, mesh = step_key(0, jnp.int32(0)), mesh_of(1)

    def mixed(views):
        vc = make_config(losses__vc__views=views, losses__vc__methods="mixup").losses.vc
        made = with_mixed(batch, key, vc, mesh)
        assert made.for_towers([MIXED]).images.resized is None and made.valid["mixed"].shape == (PAIRS, 1)
        return np.asarray(made.fields["mixed"].pixels)

    cropped, resized, both = map(mixed, ("crop", "resize", "crop,resize"))
    np.testing.assert_allclose(resized.astype(int), 255 - cropped.astype(int), atol=1)  # rounding half up
    runs = np.arange(PAIRS) // 2 % 2 == 0
    np.testing.assert_array_equal(both, np.where(runs[:, None, None, None, None], cropped, resized))


def test_splitting_and_joining_parameters_loses_nothing():
    encoder = tiny_encoder()
    parameters = parameters_of(encoder.model)
    for what in ("all", "none", "last:1", "last:2"):
        trained, frozen = split_parameters(parameters, encoder.spec, {"vision": what, "text": "last:1"})
        joined = join_parameters(trained, frozen)
        assert joined.keys() == parameters.keys()
        for path, array in joined.items():
            np.testing.assert_array_equal(array, parameters[path])
    assert not any(path.startswith("vision.") for path in split_parameters(
        parameters, encoder.spec, {"vision": "none", "text": "all"})[0])  # fmt: skip


def test_only_parameters_are_gathered_over_fsdp_and_no_activations(monkeypatch):
    monkeypatch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 256)
    encoder, mesh = tiny_encoder(), make_mesh(jax.devices()[:8], fsdp=4)
    config = make_config(remat="full", micro_batches=2, **{**PAIRS_ALONE, "losses__sc__weight": 1.0})
    # As BERT's 30,522 words over 8 devices, a vocabulary that does not divide.
    spec = dataclasses.replace(encoder.spec, text=dataclasses.replace(encoder.spec.text, vocabulary_size=301))
    program = lower_step(config, spec, encoder.preprocessing, mesh, TOKENS).compile().as_text()
    moved = re.findall(r"= \(?\w+\[([\d,]*)\].* (all-gather|all-to-all|collective-permute)(?:-start)?\(", program)
    assert sum(kind == "all-gather" for _, kind in moved) > 20
    # Rows of tokens, 17 of an image and 12 of a text, stay where they are; (17, 32) are the positions, a parameter.
    shapes = [shape.split(",") for shape, _ in moved]
    assert not [shape for shape in shapes if len(shape) > 2 and {"17", "12"} & set(shape)]


def bytes_kept(config, spec, rows: int) -> int:
    """Bytes of the residuals of the towers' backward pass, before the compiler fuses anything."""
    config.batch_size = rows
    shapes = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in parameter_shapes(spec).items()}
    embed, fields = make_embed(config, spec, tiny_encoder().preprocessing, mesh_of(1)), active_fields(config.losses)

    def residuals(parameters, batch):
        return jax.vjp(lambda trained: embed(trained, {}, batch.for_towers(fields), fields), parameters)[1]

    kept = jax.eval_shape(residuals, shapes, batch_shapes(config, spec, TOKENS, for_towers=True))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def test_bytes_that_the_backward_pass_keeps_of_an_image_fall_with_rematerialisation():
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
    # 157 MB by the backward passes that JAX derives of norms and activations.
    assert 80e6 < kept["none"] < 95e6
    # Half of what the blocks keep, and of the rest at most half.
    assert 0.5 * block < kept["full"] - kept["half of the patches"] < 0.5 * kept["full"]


def test_only_matrices_decay_and_rates_fall_with_depth():
    encoder, config = tiny_encoder(), make_config().optimizer
    config.weight_decay, config.learning_rate, config.layer_decay, config.tower_lr_scale = 0.5, 1.0, 0.5, 0.1
    parameters = parameters_of(encoder.model)
    optimizer = make_optimizer(config, 10, encoder.spec, parameters)
    state = optimizer.init(parameters)
    zero = jax.tree.map(jnp.zeros_like, parameters)
    update = jax.jit(optimizer.update)
    _, state = update(zero, state, parameters)
    updates, _ = update(zero, state, parameters)  # past the warmup's rate of zero
    moved = {path for path, change in updates.items() if np.abs(change).max() > 0}
    assert "vision.blocks.block.mlp.up.kernel" in moved
    assert "text.words" in moved
    assert not {path for path in moved if path.endswith((".bias", ".scale", "logit_scale"))}
    spec, kernel = encoder.spec, parameters["vision.blocks.block.mlp.up.kernel"]
    assert rate_of("vision.blocks.block.mlp.up.kernel", kernel, spec, config) == (0.05, 0.1)
    assert rate_of("vision.patch.kernel", parameters["vision.patch.kernel"], spec, config) == pytest.approx(0.025)
    assert rate_of("vision_head.kernel", parameters["vision_head.kernel"], spec, config) == 1.0


def test_the_schedule_warms_up_and_ends_at_its_share():
    config = make_config(
        optimizer__warmup_fraction=0.1, optimizer__final_lr_fraction=0.2, optimizer__learning_rate=3.0
    ).optimizer
    schedule = make_schedule(config, 100)
    assert float(schedule(0)) == 0
    assert float(schedule(5)) == pytest.approx(1.5)
    assert float(schedule(10)) == pytest.approx(3.0)
    assert float(schedule(100)) == pytest.approx(0.6)
    reference = optax.cosine_decay_schedule(3.0, 90, alpha=0.2)
    assert float(schedule(55)) == pytest.approx(float(reference(45)))


def test_new_residual_heads_change_no_embedding():
    encoder = tiny_encoder()
    grown = with_residual_heads(encoder, 24, seed=1)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    np.testing.assert_allclose(grown.encode_image(images), encoder.encode_image(images), atol=1e-6)
    assert isinstance(grown.model, DualEncoder)
    assert grown.spec.vision_head.hidden == 24
