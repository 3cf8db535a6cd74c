"""Models that can be evaluated, one file a kind, and the one way to open any source that a command line names."""

import importlib
import pkgutil
from typing import Any

from jax.sharding import Mesh

from rococo_jax.encoders import LoadOptions, load_encoder
from rococo_jax.encoders.programs import Compute
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.models.model import OPENERS, Loading, Model


def open_model(
    source: Any,
    *,
    name: str | None = None,
    mesh: Mesh | None = None,
    compute: Compute | None = None,
    options: LoadOptions | None = None,
) -> Model:
    """Open a source of any kind: what a file of `evaluation.models` recognises, else what `load_encoder` takes.

    Raises InputError: as `load_encoder`, or as the kind says.
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    loading = Loading(mesh, compute, options)
    opened = (opener(source, loading) for opener in OPENERS)
    model = next((model for model in opened if model is not None), None)
    if model is None:
        model = EncoderModel(load_encoder(source, mesh=mesh, compute=compute, options=options))
    model.name = name or model.name
    return model
