"""Training as one call, for notebooks and scripts: what `rococo train` does, with a config at hand."""

import os

from ml_collections import ConfigDict

from rococo_jax.training import run
from rococo_jax.training.config import check_config
from rococo_jax.training.config_renames import rename_in_place


def train(config: ConfigDict, workdir: str | os.PathLike) -> run.Run:
    """Trains in `workdir`, goes on with what is there, or finds it done. `load_model(run.model)` is the outcome.

    Args:
        config: from `default_config`, changed.
        workdir: made where it does not exist.

    Raises:
        InputError: a key does not exist (`config.losses.sc.wieght = 1` names a new one), or see `training.run.train`.
    """
    config = config.copy_and_resolve_references()
    rename_in_place("config", config)
    check_config(config)
    return run.train(config, workdir)
