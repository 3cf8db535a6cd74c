"""Training as one call, for notebooks and scripts: `rococo train` with a config object."""

import os

from ml_collections import ConfigDict

from rococo_jax.training import run
from rococo_jax.training.config import check_config


def train(config: ConfigDict, workdir: str | os.PathLike) -> run.Run:
    """Trains in `workdir`, resumes a run that is there, or returns where it is done.

    `config` is a changed `default_config()`; `load_model(run.model)` reads the trained model. Raises InputError where a
    key does not exist (`config.losses.sc.wieght = 1` adds one), and as `training.run.train`.
    """
    config = config.copy_and_resolve_references()
    check_config(config)
    return run.train(config, workdir)
