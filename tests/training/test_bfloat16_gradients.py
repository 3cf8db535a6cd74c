"""The gradients of a step in bfloat16 with SC and VC: every sum over rows is float32, for every trained parameter.

The traced program is read, since a CPU computes in float32 what the program sums in bfloat16. The number of pairs is a
prime that divides no other length, so that an axis of rows is known by its length.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.losses import active_fields
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.similarity import ShardedLogits
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.grad_cache import loss_and_gradients
from rococo_jax.training.step import make_embed, total_loss
from tests.models.test_flops import TEXT, VISIONS, VIT
from tests.support.cases import further
from tests.support.tiny import tiny_encoder
from tests.support.tiny_runs import mesh_of
from tests.training.test_step import make_config, tower_batch_shapes

PAIRS, TOKENS, PARTS = 13, 24, 2
SC_AND_VC = {"data__text_length": TOKENS, "losses__hard_positives__weight": 0.0}
LINEAR = HeadSpec("linear", 64)
BERT = {"attention": "masked", "norm_after_blocks": True, "token_types": 2, "pooling": "mean"}
TEXTS = {
    "clip": TEXT,
    "siglip": dataclasses.replace(TEXT, attention="full", pooling="last"),
    "coca": dataclasses.replace(TEXT, pooling="appended", pad_id=0),
    "bert": dataclasses.replace(TEXT, **BERT),
}
MORE_VISIONS = {
    "class token last": dataclasses.replace(VIT, class_position=False, norm_before_blocks=True),
    "eva": dataclasses.replace(VIT, inner_norms=True, norm_changes=True, layer_scale=False),
}
EVERY_VISION = {name: vision for name, (vision, _) in VISIONS.items()} | MORE_VISIONS
SPECS = {f"image, {name}": ModelSpec(vision, TEXT, LINEAR, LINEAR) for name, vision in EVERY_VISION.items()}
SPECS |= {f"text, {name}": ModelSpec(VIT, text, LINEAR, LINEAR) for name, text in TEXTS.items()}


def _programs(jaxpr):
    """The program and those inside its loops and calls."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda each: hasattr(each, "eqns")):
            if hasattr(value, "eqns"):
                yield from _programs(getattr(value, "jaxpr", value))


def _summed_lengths(equation) -> list[int]:
    """Return lengths of the axes that an equation sums over; 0 for devices."""
    name, shape = equation.primitive.name, equation.invars and getattr(equation.invars[0].aval, "shape", ())
    if name == "dot_general":
        return [shape[axis] for axis in equation.params["dimension_numbers"][0][0]]
    if name == "reduce_sum":
        return [shape[axis] for axis in equation.params["axes"]]
    if name == "conv_general_dilated":
        return [shape[equation.params["dimension_numbers"].lhs_spec[1]]]
    if name == "scatter-add":
        rows, table = equation.invars[2].aval.shape, equation.outvars[0].aval.shape
        return [length for length in rows if length not in table]
    return [0] if name.startswith("psum") or name == "reduce_scatter" else []


def narrow_sums(jaxpr, rows: int) -> list[str]:
    """Sums over rows or devices whose result is narrower than float32."""
    return [
        str(equation)
        for program in _programs(jaxpr)
        for equation in program.eqns
        if equation.outvars[0].aval.dtype == jnp.bfloat16
        and any(length % rows == 0 for length in _summed_lengths(equation))
    ]


def program_of_gradients(name: str, parts: int):
    """The program of all gradients, and their paths in the order of its results."""
    spec, mesh = SPECS[name], mesh_of(1)
    rows = PAIRS * parts
    config = make_config(batch_size=rows, micro_batches=parts, dtype="bfloat16", remat="full", **SC_AND_VC)
    config.losses.vc.partner_group = PAIRS
    # One tower at a time but for CLIP's, which has both.
    if name != "image, clip":
        config.train["text" if name.startswith("image") else "vision"] = "none"
    fields, logits = active_fields(config.losses), ShardedLogits(mesh)
    batch = tower_batch_shapes(config, spec, TOKENS)
    embed = make_embed(config, spec, tiny_encoder().preprocessing, mesh)
    every = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in parameter_shapes(spec).items()}
    trained, frozen = jax.eval_shape(lambda every: split_parameters(every, spec, config.train), every)

    def gradients(trained, frozen, batch):
        def loss(vectors, scales):
            return total_loss(vectors, scales, batch, config.losses, logits)

        return loss_and_gradients(
            lambda copies, rows: embed(copies, frozen, rows, fields), loss, trained, batch.for_towers(fields),
            micro_batches=parts, mesh=mesh,
        )[2]  # fmt: skip

    program, results = jax.make_jaxpr(gradients, return_shape=True)(trained, frozen, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(results)} == {jnp.dtype(jnp.float32)}
    tower = "vision." if name.startswith("image") else "text."
    assert sum(path.startswith(tower) for path in results) == sum(path.startswith(tower) for path in every)
    return program.jaxpr, sorted(results)


# Every third tower; all of them in a thorough run.
PROGRAMS = further([(name, 1) for name in SPECS], [(name, 1) for name in [*SPECS][::3]], pytest.mark.thorough)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parts"), [*PROGRAMS, ("image, clip", PARTS)])
def test_gradients_of_parameters_are_never_summed_over_rows_in_bfloat16(name, parts):
    program, paths = program_of_gradients(name, parts)

    def sums_of(chosen: list[str]) -> list[str]:
        of_parameters, _ = partial_eval.dce_jaxpr(program, [path in chosen for path in paths])
        return narrow_sums(of_parameters, PAIRS)

    # One by one only where some sum of any is narrow, to name the parameters.
    narrow = {path: sums for path in paths if (sums := sums_of([path]))} if sums_of(paths) else {}
    assert narrow == {}
