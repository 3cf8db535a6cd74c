"""The program of a step that trains the last blocks is the same in every process, so that a cached one is found."""

import string

import jax
import jax.numpy as jnp

from rococo_jax.training.freezing import join_parameters


def test_stacks_are_joined_in_the_order_of_their_parameters():
    frozen = {letter: jnp.zeros((1, size)) for size, letter in enumerate(string.ascii_letters, 1)}
    program = jax.make_jaxpr(join_parameters)({path: array + 1 for path, array in frozen.items()}, frozen)
    joined = [
        equation.outvars[0].aval.shape[1] for equation in program.eqns if "concatenate" in str(equation.primitive)
    ]
    # JAX hands over dictionaries sorted.
    assert joined == [frozen[letter].shape[1] for letter in sorted(frozen)]
