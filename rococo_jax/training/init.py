"""The model that training starts from, loaded or with random parameters, and the models that are made from it.

A model between two models A and B has `(1 - w) A + w B` in every parameter (WiSE-FT, arXiv 2109.01903); the logit scale
is interpolated as its logarithm, in which it is stored. Between models that were trained from the same start, the loss
is often no higher than at both ends, so the weight w selects a trade-off without training.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.formats.base import has_tokenizer
from rococo_jax.checkpoints.model_directory import MODEL_FILE, TOKENIZER_FILE
from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    build_model,
    checkpoint_of,
    hash_parameters,
    parameters_of,
    with_interpolated_positions,
    without_matching,
)
from rococo_jax.checkpoints.weight_files import find_weights
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.saved_tokenizer import read_saved_tokenizer
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_images import NO_IMAGES, union
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.foreign import is_factory, load_factory
from rococo_jax.encoders.loading import encoder_of, read_model_tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.models.fsdp import sharding_of
from rococo_jax.runtime import make_mesh


def starting_encoder(config: ConfigDict, mesh: Mesh | None = None) -> Encoder:
    """Return the encoder with the initial parameters. A matching head is removed, since no loss trains it.

    Raises InputError: no model is named, it has one tower only, or it does not have the logit bias that the loss needs.
    """
    if config.init.model:
        size = config.init.image_size or None
        encoder = load_model(config.init.model, mesh=mesh, dtype=jnp.dtype(config.dtype), image_size=size)
        if size:
            # Position embeddings become parameters of the new size, each of which training can change.
            spec, parameters = with_interpolated_positions(encoder.spec, parameters_of(encoder.model))
            encoder = encoder.with_model(build_model(spec, parameters, encoder.model.dtype))
        if encoder.spec.matching is not None:
            encoder = encoder.with_model(without_matching(encoder.model))
    elif config.init.spec:
        encoder = _random_encoder(config, mesh)
    else:
        raise InputError("config", "init.model", "''", "a model to start from, or init.spec with init.tokenizer")
    if encoder.spec.vision is None or encoder.spec.text is None:
        raise InputError(config.init.model, "towers", "one", "a dual encoder; `rococo join` makes one of two towers")
    sigmoid = config.losses.contrastive.kind == "sigmoid"
    if sigmoid and encoder.model.logit_bias is None:
        raise InputError("config", "losses.contrastive.kind", "'sigmoid'", "'softmax' for a model without a logit bias")
    if not sigmoid and encoder.model.logit_bias is not None:
        raise InputError("config", "losses.contrastive.kind", "'softmax'", "'sigmoid' for a model with a logit bias")
    width = config.init.residual_head_width
    return with_residual_heads(encoder, width, config.seed) if width else encoder


def _random_encoder(config: ConfigDict, mesh: Mesh | None) -> Encoder:
    fields = config.init.spec.to_dict()
    text = fields.get("text")
    context_length = text.get("context_length") if isinstance(text, dict) else None
    tokenizer = read_tokenizer(config.init.tokenizer, context_length)
    # A vocabulary size of 0 means that of the tokenizer, which a config does not know.
    if isinstance(fields.get("text"), dict) and not fields["text"].get("vocabulary_size"):
        fields["text"]["vocabulary_size"] = tokenizer.rust.get_vocab_size()
    spec = ModelSpec.from_json(fields, "config.init.spec")
    preprocessing = Preprocessing.from_json(config.init.preprocessing.to_dict(), "config.init.preprocessing")
    mesh = make_mesh() if mesh is None else mesh
    parameters = random_parameters(spec, config.seed, mesh)
    provenance = {"made_by": "random parameters", "seed": config.seed, "weights_sha256": hash_parameters(parameters)}
    checkpoint = Checkpoint(spec, parameters, preprocessing, tokenizer, provenance, NO_IMAGES, "random")
    return encoder_of(checkpoint, mesh, jnp.dtype(config.dtype))


def random_parameters(
    spec: ModelSpec, seed: int, mesh: Mesh, prefixes: tuple[str, ...] = ("",)
) -> dict[str, jax.Array]:
    """Draw initial parameters by path, of a whole model or of what begins with one of the `prefixes`.

    Each device computes its shards only, and nothing that was not requested is computed. The values depend on neither.
    """

    def draw() -> dict[str, jax.Array]:
        parameters = parameters_of(DualEncoder(spec, rngs=nnx.Rngs(seed)))
        return {path: array for path, array in parameters.items() if path.startswith(prefixes)}

    shardings = {path: sharding_of(path, leaf.shape, mesh) for path, leaf in jax.eval_shape(draw).items()}
    return jax.jit(draw, out_shardings=shardings)()


# Context length of a tokenizer without a model, if the spec does not say.
_CONTEXT_LENGTH = 77


def read_tokenizer(source: str, context_length: int | None = None) -> Tokenizer:
    """Read a tokenizer.

    Args:
        source: a folder or file with a tokenizer, a model (directory, folder or hub name), or a function
            `package.module:function` that returns a tokenizer.
        context_length: maximum number of tokens in a text.

    Raises InputError: `source` is empty, there is no such file, model or function, or it gives no tokenizer.
    """
    if not source:
        expected = "a tokenizer, or a model that has one, together with init.spec"
        raise InputError("config", "init.tokenizer", "''", expected)
    path = Path(source)
    folder = path.parent if path.name == TOKENIZER_FILE else path
    is_tokenizer_alone = path.is_dir() and has_tokenizer(path) and find_weights(path) is None
    if is_factory(source):
        tokenizer = load_factory(source)
    elif (folder / MODEL_FILE).is_file():
        tokenizer = read_model_tokenizer(folder)
    elif path.suffix == ".json" or is_tokenizer_alone:
        tokenizer = read_saved_tokenizer(path, context_length or _CONTEXT_LENGTH)
    else:
        tokenizer = load_model(source).tokenizer
    if not isinstance(tokenizer, Tokenizer):
        expected = "a tokenizer, a model with a text tower, or package.module:function that makes a Tokenizer"
        raise InputError("config", "init.tokenizer", repr(source), expected)
    return _shortened(tokenizer, context_length)


def _shortened(tokenizer: Tokenizer, context_length: int | None) -> Tokenizer:
    """Return a tokenizer that cuts texts at the context length of the tower."""
    spec = tokenizer.spec
    if context_length is None or spec.fixed_length is not None or spec.context_length <= context_length:
        return tokenizer
    spec = dataclasses.replace(spec, context_length=context_length)
    return Tokenizer(tokenizer.rust, spec, tokenizer.read_from)


def with_residual_heads(encoder: Encoder, hidden: int, seed: int) -> Encoder:
    """Add a residual MLP to each head. The model computes the same at first, as the last kernel of the MLP is zero.

    Raises InputError: a head is missing, or has an MLP already.
    """
    spec = encoder.spec
    heads = {}
    for name in ("vision_head", "text_head"):
        head = getattr(spec, name)
        if head.kind == "none" or head.hidden is not None:
            problem = "none" if head.kind == "none" else f"one with an MLP of {head.hidden}"
            raise InputError(encoder.name, name, problem, "an affine head, for init.residual_head_width to grow")
        heads[name] = dataclasses.replace(head, hidden=hidden)
    grown_spec, parameters = dataclasses.replace(spec, **heads), parameters_of(encoder.model)
    for name in heads:
        affine = {path: array for path, array in parameters.items() if path.startswith(f"{name}.")}
        parameters |= {path.replace(f"{name}.", f"{name}.affine."): array for path, array in affine.items()}
        parameters = {path: array for path, array in parameters.items() if path not in affine}
    new = random_parameters(grown_spec, seed, encoder.mesh, prefixes=tuple(f"{name}." for name in heads))
    return encoder.with_model(build_model(grown_spec, new | parameters, encoder.model.dtype))


def with_training(
    origin: Checkpoint, parameters: Mapping[str, jax.Array | np.ndarray], record: dict[str, Any]
) -> Checkpoint:
    """Return a starting model with trained parameters, and with a record of the training in its provenance."""
    provenance = {"trained": record, "started_from": origin.provenance}
    return origin._replace(parameters=parameters, provenance=provenance)


def interpolated(first: Encoder, second: Encoder, weight: float) -> Encoder:
    """Interpolate between two models: 0 gives the first, 1 the second; preprocessing and tokenizer are the first's.

    Raises InputError: the models differ in their shape, preprocessing or tokenizer, or the weight is not from 0 to 1.
    """
    if not 0 <= weight <= 1:
        raise InputError("interpolation", "weight", weight, "a number from 0 to 1")
    for name in ("spec", "preprocessing"):
        if getattr(first, name) != getattr(second, name):
            raise InputError(second.name, name, f"another one than of {first.name}", "models of one shape and input")
    tokenizers = [encoder.tokenizer and encoder.tokenizer.rust.to_str() for encoder in (first, second)]
    if tokenizers[0] != tokenizers[1]:
        raise InputError(second.name, "tokenizer", f"another one than of {first.name}", "models of one vocabulary")
    first_parameters, second_parameters = parameters_of(first.model), parameters_of(second.model)
    mean = {path: (1 - weight) * array + weight * second_parameters[path] for path, array in first_parameters.items()}
    record = {"interpolated": {"weight": weight, "first": first.provenance, "second": second.provenance}}
    images = union(first.training_images, second.training_images)
    checkpoint = with_training(checkpoint_of(first)._replace(training_images=images), mean, record)
    return encoder_of(checkpoint, first.mesh, first.model.dtype)
