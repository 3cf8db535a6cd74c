"""The gradient cache: gradients of the whole batch, and what it computes and holds for them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.training.grad_cache import divides_into_micro_batches, loss_and_gradients
from tests.support.tiny_runs import mesh_of

ROWS, WIDTH, LAYERS = 64, 32, 3
# Two products of a layer and row in the forward pass, and twice as many in the backward pass.
FORWARD = 2 * ROWS * WIDTH * WIDTH * 2 * LAYERS


def embed(parameters, rows):
    """A tower of blocks that keep their inputs alone, each wide inside."""

    @jax.checkpoint
    def block(x, layer):
        return x + jnp.tanh(x @ layer["up"]) @ layer["down"]

    layers = {name: parameters[name] for name in ("up", "down")}
    return {"image": jax.lax.scan(lambda x, layer: (block(x, layer), None), rows["x"], layers)[0]}


def loss(embedded, scales):
    """Stand in for a loss that compares all rows with all."""
    logits = jnp.exp(scales["logit_scale"]) * embedded["image"] @ embedded["image"].T / ROWS
    return jax.nn.logsumexp(logits), {"part": logits.mean()}


def program(micro_batches, *, loss=loss, width: int = WIDTH, rows: int = ROWS):
    """Return the jitted function of the gradients, and its arguments."""
    rng = np.random.default_rng(0)
    shapes = {"up": (LAYERS, WIDTH, width), "down": (LAYERS, width, WIDTH)}
    parameters = {name: jnp.asarray(rng.normal(size=shape) * 0.1, jnp.float32) for name, shape in shapes.items()}
    read = {"x": jnp.asarray(rng.normal(size=(rows, WIDTH)), jnp.float32)}

    def compute(parameters, read):
        return loss_and_gradients(embed, loss, parameters, read, micro_batches=micro_batches)

    return jax.jit(compute), parameters | {"logit_scale": jnp.float32(0.5)}, read


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_micro_batches_give_the_gradients_of_the_full_batch_and_all_but_one_are_embedded_twice(micro_batches):
    compute, parameters, read = program(micro_batches)
    value, pieces, gradients = compute(parameters, read)
    whole = jax.value_and_grad(lambda parameters: loss(embed(parameters, read), parameters)[0])
    right_value, right_gradients = whole(parameters)
    np.testing.assert_allclose(value, right_value, rtol=1e-6)
    assert pieces.keys() == {"part"}
    for found, right in zip(jax.tree.leaves(gradients), jax.tree.leaves(right_gradients), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)
    # Blocks computed again are one forward pass less the last product, which no gradient needs.
    rematerialised, again = FORWARD / 2, (1 - 1 / micro_batches) * FORWARD
    products = _products(jax.make_jaxpr(compute)(parameters, read).jaxpr)
    assert products - 3 * 2 * ROWS * ROWS * WIDTH == 3 * FORWARD + rematerialised + again


def test_the_loss_receives_rows_in_their_original_order_from_several_devices():
    """A loss that weights every pair of rows otherwise, in micro-batches of rows of each device."""
    _, parameters, read = program(1)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, ROWS)), jnp.float32)

    def weighted(embedded, scales):
        return (weights * (embedded["image"] @ embedded["image"].T)).mean() * scales["logit_scale"], {}

    def embed_with_first(copies, read):
        return embed({name: copy[0] for name, copy in copies.items()}, read)

    def compute(parameters, read):
        return loss_and_gradients(embed_with_first, weighted, parameters, read, micro_batches=2, mesh=mesh_of(4))

    value, _, gradients = jax.jit(compute)(parameters, read)
    whole = jax.value_and_grad(lambda parameters: weighted(embed(parameters, read), parameters)[0])
    right_value, right_gradients = whole(parameters)
    np.testing.assert_allclose(value, right_value, rtol=1e-5)
    for name, right in right_gradients.items():
        np.testing.assert_allclose(gradients[name], right, rtol=1e-4, atol=1e-6, err_msg=name)


def _products(jaxpr) -> int:
    """Count the operations of the matrix products, those in loops once an iteration."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += times * _products(inner)
    return total


def test_several_micro_batches_take_no_more_memory_than_one():
    """Temporary bytes of wide blocks: what a block computes for one micro-batch, and what it stores of the batch."""
    rows, width = 4096, 512

    def small(embedded, scales):
        return jnp.square(embedded["image"]).sum() * scales["logit_scale"], {}

    def temporary_bytes(micro_batches):
        compute, parameters, read = program(micro_batches, loss=small, width=width, rows=rows)
        return compute.lower(parameters, read).compile().memory_analysis().temp_size_in_bytes

    inside, inputs = 4 * rows * width, 4 * rows * WIDTH * LAYERS
    whole, eighth = temporary_bytes(1), temporary_bytes(8)
    assert whole - eighth > inside
    assert eighth < 0.25 * inside + 1.5 * inputs


@pytest.mark.parametrize(("batch", "count", "devices"), [(16, 8, 2), (12, 4, 3), (8, 8, 2), (12, 4, 2), (12, 2, 4)])
def test_a_batch_is_divisible_if_each_device_has_rows_for_every_micro_batch(batch, count, devices):
    rows, remainder = divmod(batch, devices)
    assert divides_into_micro_batches(batch, count, devices) == (remainder == 0 and rows % count == 0)
