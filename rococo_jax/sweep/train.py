"""Train a model and evaluate it along the way, as its config requests: `rococo train` and `rococo_jax.train`."""

import os
import signal
from collections.abc import Callable

from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.evaluation.callback import make_evaluation
from rococo_jax.training import run
from rococo_jax.training.config import check_config
from rococo_jax.training.run import EvaluateModel, Run
from rococo_jax.training.state import TrainState


def train(
    config: ConfigDict,
    workdir: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    evaluate: EvaluateModel | None = None,
    on_step: Callable[[int, TrainState], None] | None = None,
    raise_signal: bool = True,
) -> Run:
    """Train in `workdir` until `config.steps`, or until SIGTERM or Ctrl-C; `load_model(run.model)` reads the model.

    The same call resumes a run that was stopped. With `config.eval.data`, or `config.eval.images` and
    `config.eval.annotations`, the model is evaluated every `config.eval.every` steps and at the end.

    Args:
        config: a changed `default_config()`, or from `read_config`.
        workdir: created if it does not exist.
        mesh: the devices; all of them by default.
        evaluate: called with the model instead of the evaluation of the config; a `score` among its results selects
            the best checkpoint.
        on_step: called after every step with the number of steps and the state.
        raise_signal: when a signal has stopped the run and the state is saved, raise the signal again, so that a script
            that trains several models ends: SIGTERM ends the process, Ctrl-C raises KeyboardInterrupt. If False, return
            a `Run` with `stopped` and without a model.

    Raises:
        InputError: the config (`config.stepz = 1` adds a key that does not exist), the data, the initial model or the
            working folder cannot be used.
        Diverged: the loss or its gradient is not finite.
    """
    check_config(config)
    evaluate = evaluate or make_evaluation_of(config)
    options = {name: value for name, value in (("mesh", mesh), ("on_step", on_step)) if value is not None}
    result = run.run_training(config, workdir, evaluate=evaluate, **options)
    if result.stopped and raise_signal:
        signal.raise_signal(signal.Signals[result.stopped])
    return result


def make_evaluation_of(config: ConfigDict) -> EvaluateModel | None:
    """Return the evaluation of a config; None if it names no data. Raises InputError as `make_evaluation`."""
    # Features of frozen towers are the same at every step.
    is_frozen = (config.train.vision, config.train.text) == ("none", "none")
    return make_evaluation(config.eval, keep=is_frozen)
