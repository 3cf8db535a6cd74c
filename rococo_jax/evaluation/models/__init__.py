"""Models that can be evaluated, one file a kind, and the one way to open any source that a command line names."""

import dataclasses
import importlib
import pkgutil
from typing import Any

from jax.sharding import Mesh

from rococo_jax.encoders import LoadOptions, load_encoder
from rococo_jax.encoders.loading import load_object
from rococo_jax.encoders.pair_scoring import ForeignPairScorer
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import ImageTextEncoder, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.models.model import OPENERS, Loading, Model, no_pairs
from rococo_jax.evaluation.models.pairs import PairModel


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
        model = _open(source, loading)
    model.name = name or model.name
    return model


def _open(source: Any, loading: Loading) -> Model:
    """An encoder, or what scores pairs: where it has no vectors, or as the options say."""
    options = loading.options or LoadOptions()
    how = {"mesh": loading.mesh, "compute": loading.compute}
    source, candidates = load_object(source, options), None
    if options.candidates:
        plain = dataclasses.replace(options, candidates=None, by=None, arguments={})
        candidates = load_encoder(options.candidates, **how, options=plain)
    if isinstance(source, ScoresPairs) and not isinstance(source, ImageTextEncoder):
        return PairModel(ForeignPairScorer(source), candidates, candidates is not None)
    encoder = load_encoder(source, **how, options=options)
    if options.by != "pairs":
        if candidates is not None:
            raise InputError(encoder.name, "candidates", candidates.name, "by pairs, which alone need them")
        return EncoderModel(encoder)
    if encoder.pair_scorer is None:
        raise no_pairs(encoder.name)
    return PairModel(encoder.pair_scorer, candidates or encoder, candidates is not None)
