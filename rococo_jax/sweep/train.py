"""Train a model and evaluate it along the way, as its config says: `rococo train` and `rococo_jax.train`."""

import os
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
) -> Run:
    """Train in `workdir` until `config.steps`, or until SIGTERM or Ctrl-C; `load_model(run.model)` reads the model.

    The same call resumes a run that was stopped. With `config.eval.data`, or `config.eval.images` and
    `config.eval.annotations`, the model is evaluated every `config.eval.every` steps and at the end.

    Args:
        config: a changed `default_config()`, or from `read_config`.
        workdir: created where it does not exist.
        mesh: the devices; all of them by default.
        evaluate: called with the model in place of the evaluation that the config names; a `score` among its results
            picks the best checkpoint.
        on_step: called after every step with the number of steps and the state.

    Raises:
        InputError: anything in the config (`config.stepz = 1` adds a key that does not exist), the data, the starting
            model or the working folder that does not fit.
        Diverged: the loss or its gradient is not finite.
    """
    check_config(config)
    evaluate = evaluate or make_evaluation_of(config)
    options = {"mesh": mesh, "on_step": on_step}
    chosen = {name: value for name, value in options.items() if value is not None}
    return run.run_training(config, workdir, evaluate=evaluate, **chosen)


def make_evaluation_of(config: ConfigDict) -> EvaluateModel | None:
    """The evaluation that a config names; None where it names no data. Raises InputError as `make_evaluation`."""
    # Features of frozen towers are the same at every step.
    frozen = (config.train.vision, config.train.text) == ("none", "none")
    return make_evaluation(config.eval, keep=frozen)
