"""Models that can be evaluated, one file a kind, and the one way to open any source that a command line names."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from rococo_jax.encoders import LoadOptions, load_encoder
from rococo_jax.encoders.foreign_object import run_user_code
from rococo_jax.encoders.loading import load_object
from rococo_jax.encoders.pair_scoring import ForeignPairScorer
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import FeatureEncoder, ImageTextEncoder, ScoresPairs, TakesPrompts
from rococo_jax.encoders.token_scoring import TokenScorer, gives_tokens
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.models.model import OPENERS, Loading, Model, no_pairs
from rococo_jax.evaluation.models.pairs import PairModel
from rococo_jax.evaluation.models.prompted import PromptedModel


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
    by = options.by or ("pairs" if options.candidates else "vectors")
    how = {"mesh": loading.mesh, "compute": loading.compute}
    source, candidates = load_object(source, options), None
    if options.candidates:
        candidates = load_encoder(options.candidates, **how)
    by_pairs = isinstance(source, ScoresPairs) and (by == "pairs" or not isinstance(source, ImageTextEncoder))
    if options.prompts and by_pairs:
        source = _with_prompts(source, options.prompts, ("query",))["query"]
    if by_pairs and not isinstance(source, ImageTextEncoder):
        return PairModel(ForeignPairScorer(source), candidates, candidates is not None)
    if isinstance(source, ImageTextEncoder) and not isinstance(source, FeatureEncoder) and gives_tokens(source):
        _with_prompts(source, options.prompts, ())  # refuses any
        return PairModel(TokenScorer(source), candidates, candidates is not None)
    if options.prompts and not by_pairs:
        roles = _with_prompts(source, options.prompts, ("query", "document"))
        encoders = [load_encoder(roles.get(role, source), **how, options=options) for role in ("query", "document")]
        return PromptedModel(*encoders, options.prompts)
    encoder = load_encoder(source, **how, options=options)
    if by == "vectors":
        return EncoderModel(encoder)
    if encoder.pair_scorer is None:
        raise no_pairs(encoder.name)
    return PairModel(encoder.pair_scorer, candidates or encoder, candidates is not None)


def _with_prompts(source: Any, prompts: Mapping[str, str], known: Sequence[str]) -> dict[str, Any]:
    """The object under the prompt of each role. Raises InputError: it takes no prompt, or none of that role."""
    name = getattr(source, "name", source)
    for role in prompts:
        if role not in known or not isinstance(source, TakesPrompts):
            raise InputError(name, f"{role}_prompt", repr(prompts[role]), "none: the model takes no such prompt")
    prompted = {
        role: run_user_code(str(name), functools.partial(source.with_prompt, prompt, role))
        for role, prompt in prompts.items()
    }
    for each in prompted.values():
        each.name = name
    return prompted
