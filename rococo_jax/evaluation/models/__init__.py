"""All kinds of models that can be evaluated, one file for each kind, and `open_model` for a source of any kind."""

from typing import Any

from jax.sharding import Mesh

from rococo_jax.encoders import LoadOptions
from rococo_jax.encoders.programs import Compute
from rococo_jax.evaluation.models.encoder import open_encoder, open_prompted
from rococo_jax.evaluation.models.model import Loading, Model
from rococo_jax.evaluation.models.pairs import open_pairs
from rococo_jax.evaluation.models.stored_embeddings import open_embeddings

# Each takes a source and how to load it, and returns the model, or None if the source has another form.
_OPENERS = (open_embeddings, open_pairs, open_prompted, open_encoder)


def open_model(
    source: Any,
    *,
    name: str | None = None,
    mesh: Mesh | None = None,
    compute: Compute | None = None,
    options: LoadOptions | None = None,
) -> Model:
    """Open a source of any kind: `embeddings:PATH`, or any source of `load_encoder`.

    Raises InputError: as `load_encoder`, or as documented for the kind.
    """
    loading = Loading(source, mesh, compute, options or LoadOptions())
    candidates = (opener(source, loading) for opener in _OPENERS)
    model = next(model for model in candidates if model is not None)
    model.name = name or model.name
    return model
