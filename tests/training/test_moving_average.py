"""The moving average of parameters against those of NumPy and optax: debiased, evaluated, saved, resumed bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import load_model
from rococo_jax.training.optimizer import moving_average
from rococo_jax.training.run import run_training
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.tiny_runs import FEATURES_ALONE, Stopped, mesh_of, stop_after, tiny_config
from tests.support.world import write_world

IMAGES, STEPS = 8, 6


update = jax.jit(moving_average, static_argnums=2)


def mean_of(history: list, decay: float) -> np.ndarray:
    """The mean of the parameters after every update, the last weighted 1, those before by powers of the decay."""
    shares = float(decay) ** np.arange(len(history))[::-1]
    return np.tensordot(shares / shares.sum(), np.asarray(history, np.float64), axes=1)


@pytest.mark.parametrize("decay", [0.5, 0.99, 0.9999])
def test_the_moving_average_matches_optax(decay):
    random = np.random.default_rng(0)
    start, history = random.normal(size=(3, 4)), np.cumsum(random.normal(size=(300, 3, 4)), axis=0, dtype=np.float32)
    average, oracle = {"a": jnp.asarray(start, jnp.float32)}, optax.ema(decay, debias=True)
    state = oracle.init(jnp.zeros((3, 4)))
    for number, parameters in enumerate(history, 1):
        average = update(average, {"a": jnp.asarray(parameters)}, decay, jnp.int32(number))
        with jax.numpy_dtype_promotion("standard"):
            expected, state = oracle.update(jnp.asarray(parameters), state)
        if number in (1, 2, 10, 300):
            # Roundings of float32: one an update, of values up to 50.
            np.testing.assert_allclose(average["a"], mean_of(history[:number], decay), rtol=2e-5, atol=2e-5)
            # optax subtracts a power of the decay from 1 in float32, and a hundredth of 1e-4 is lost.
            np.testing.assert_allclose(average["a"], expected, rtol=2e-5 if decay < 0.999 else 2e-3, atol=2e-5)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Heads on features of frozen towers, which take a second."""
    captions = [random_captions(3, seed=number, longest=6) for number in range(IMAGES)]
    folder = write_world(tmp_path_factory.mktemp("data"), captions, start=tiny_encoder(name="start"))
    return tiny_config(
        folder, steps=STEPS, batch_size=IMAGES, ema=0.8,
        optimizer__learning_rate=0.1, optimizer__warmup_fraction=0.0, checkpoint__every=3,
        eval__every=2, eval__data="read by nobody", checkpoint__keep=1, checkpoint__keep_every=3, **FEATURES_ALONE,
    )  # fmt: skip


def kernel_of(encoder) -> np.ndarray:
    return np.asarray(parameters_of(encoder.model)["text_head.kernel"])


@pytest.mark.slow
def test_the_moving_average_is_evaluated_and_saved_and_resumes_with_the_same_bits(config, tmp_path):
    evaluated, history, mesh = [], [], mesh_of(1)

    def evaluate(encoder):
        evaluated.append(kernel_of(encoder))
        return {"score": 0.0}

    def on_step(done, state):
        history.append(np.asarray(state.parameters["text_head.kernel"]))

    done = run_training(config, tmp_path / "run", mesh=mesh, evaluate=evaluate, on_step=on_step)
    expected = [mean_of(history[:number], config.ema) for number in range(1, STEPS + 1)]
    start = kernel_of(load_model(config.init.model))
    # Far from the start and from the last parameters: neither passes for the average.
    assert min(np.abs(expected[-1] - other).max() for other in (start, history[-1])) > 1e-2
    found = [*evaluated, kernel_of(load_model(done.model)), kernel_of(load_model(f"{tmp_path / 'run'}@3"))]
    for array, wanted in zip(found, (*(expected[step - 1] for step in (2, 4, 6)), *(expected[5], expected[2])),
                             strict=True):  # fmt: skip
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)

    with pytest.raises(Stopped):
        run_training(config, tmp_path / "cut", mesh=mesh, on_step=stop_after(5))
    again = run_training(config, tmp_path / "cut", mesh=mesh)
    assert again.resumed_from == 3
    np.testing.assert_array_equal(kernel_of(load_model(again.model)), kernel_of(load_model(done.model)))
