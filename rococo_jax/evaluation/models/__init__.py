"""Models that can be evaluated, one file for each kind, and `open_model` for a source of any kind."""

import importlib
import pkgutil
from typing import Any

from jax.sharding import Mesh

from rococo_jax.encoders import LoadOptions
from rococo_jax.encoders.programs import Compute
from rococo_jax.evaluation.models.encoder import open_encoder
from rococo_jax.evaluation.models.model import OPENERS, Loading, Model
from rococo_jax.evaluation.models.pairs import open_pairs
from rococo_jax.evaluation.models.prompted import open_prompted


def open_model(
    source: Any,
    *,
    name: str | None = None,
    mesh: Mesh | None = None,
    compute: Compute | None = None,
    options: LoadOptions | None = None,
) -> Model:
    """Open a source of any kind: one that a file of `evaluation.models` recognises, or any source of `load_encoder`.

    Raises InputError: as `load_encoder`, or as documented for the kind.
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    loading = Loading(source, mesh, compute, options or LoadOptions())
    opened = (opener(source, loading) for opener in (*OPENERS, open_pairs, open_prompted, open_encoder))
    model = next(model for model in opened if model is not None)
    model.name = name or model.name
    return model
