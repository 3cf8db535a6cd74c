"""`load_model`: any model by its name, ready to encode."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from rococo_jax.checkpoints.hub import demo_folder
from rococo_jax.checkpoints.model_directory import (
    MODEL_FILE,
    PARAMETERS,
    TOKENIZER_FILE,
    read_description,
    restore_parameters,
)
from rococo_jax.checkpoints.parameters import (
    build_model,
    check_parameters,
    check_tokenizer,
    parameters_of,
    with_image_size,
)
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.remote import local_copy
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.data.training_images import read_training_images
from rococo_jax.encoders.adapters import is_adapted, load_adapted
from rococo_jax.encoders.compute import Compute
from rococo_jax.encoders.encoder import Encoder
from rococo_jax.encoders.foreign import ForeignEncoder, is_factory, load_factory
from rococo_jax.encoders.run_checkpoints import find_checkpoint, read_checkpoint
from rococo_jax.runtime import cache_folder, make_mesh
from rococo_jax.storage import is_url


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """What a source may leave open.

    Attributes:
        activation, tokenizer: of checkpoints of other projects; see `load_model`.
        arguments: keyword arguments for `file.py:function` and for adapters.
    """

    activation: str | None = None
    tokenizer: str | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def load_encoder(
    source: Any, *, mesh: Mesh | None = None, compute: Compute | None = None, options: LoadOptions | None = None
) -> Encoder | ForeignEncoder:
    """Whatever can be evaluated: what `load_model` takes, `file.py:attribute`, or an object of any framework.

    Args:
        source: a model's name, the name of a function that returns an encoder, a model of another library such as
            `open_clip:ViT-B-32/openai` (see `adapters`), or an encoder.
        mesh: the devices; all of them by default.
        compute: how the towers compute, for models of this project that are loaded here.
        options: what the source leaves open.

    Raises:
        InputError: as `load_model`, or the object lacks `encode_image` or `encode_text`.
    """
    options, compute = options or LoadOptions(), compute or Compute()
    if isinstance(source, str) and is_adapted(source):
        source = load_adapted(source, options.arguments)
    elif isinstance(source, str) and is_factory(source):
        source = load_factory(source, options.arguments)
    if isinstance(source, str | os.PathLike):
        chosen = {"activation": options.activation, "tokenizer": options.tokenizer}
        encoder = load_model(source, mesh=mesh, dtype=compute.dtype, **chosen)
        encoder.use(compute)
        return encoder
    if isinstance(source, Encoder | ForeignEncoder):
        return source
    return ForeignEncoder(source, mesh=mesh, images_at_once=compute.images_at_once)


def load_model(
    source: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    dtype: DTypeLike = jnp.float32,
    image_size: int | None = None,
    source_format: str = "auto",
    pooling: str | None = None,
    activation: str | None = None,
    tokenizer: str | None = None,
) -> Encoder:
    """A model directory, or a checkpoint of another project (file, folder or hub name), as an `Encoder`.

    Args:
        source: where the model is; `demo:plain` is the small one that comes with the package, `RUN@best` and
            `RUN/checkpoints/STEP` are checkpoints of a training run. A folder behind a URL (`gs://bucket/model`) is
            copied into the cache folder.
        mesh: the devices to put it on; all of them by default, each with a whole copy unless the mesh has an `fsdp`.
        dtype: of the compute, float32 or bfloat16. Parameters, norms, softmax and heads are float32 always.
        image_size: encode square images of this many pixels; position embeddings are interpolated.
        source_format, pooling, activation, tokenizer: for checkpoints of other projects; see `sources.convert`.

    Raises:
        InputError: the source is none of these, or something in it is missing, broken or does not fit together.
    """
    if is_url(source):
        source = local_copy(str(source), cache_folder() / "remote")
    folder, mesh = demo_folder(source) or Path(source), make_mesh() if mesh is None else mesh
    if (folder / MODEL_FILE).is_file() or (folder / PARAMETERS).is_dir():
        spec, description = read_description(folder)
        provenance, parameters = description["provenance"], restore_parameters(folder, spec, mesh)
        check_parameters(parameters, folder / PARAMETERS, provenance.get("weights_sha256"))
        return _described(folder, provenance, parameters, folder.resolve().name, mesh, dtype, image_size)
    if (checkpoint := find_checkpoint(folder)) is not None:
        parts = read_checkpoint(checkpoint, mesh, lambda start: parameters_of(load_model(start, mesh=mesh).model))
        name = f"{checkpoint.resolve().parent.parent.name}@{checkpoint.name}"
        return _described(*parts, name, mesh, dtype, image_size)
    from rococo_jax.checkpoints.formats import convert

    parts = convert(
        str(source),
        source_format=source_format,
        pooling=pooling,
        activation=activation,
        tokenizer=tokenizer,
        dtype=dtype,
        image_size=image_size,
    )
    return Encoder(*parts, name=folder.resolve().name if folder.exists() else str(source), mesh=mesh)


def _described(
    folder: Path,
    provenance: dict[str, Any],
    parameters: dict[str, jax.Array],
    name: str,
    mesh: Mesh,
    dtype: DTypeLike,
    image_size: int | None,
) -> Encoder:
    """The encoder of some parameters and the description in a folder."""
    spec, description = read_description(folder)
    path = folder / MODEL_FILE
    preprocessing, tokenizer = description["preprocessing"], description["tokenizer"]
    if preprocessing is not None:
        preprocessing = Preprocessing.from_json(preprocessing, path)
    if tokenizer is not None:
        tokenizer = Tokenizer.load(folder / TOKENIZER_FILE, TokenizerSpec.from_json(tokenizer, path))
    check_tokenizer(tokenizer, spec, path)
    spec, preprocessing = with_image_size(spec, preprocessing, image_size)
    encoder = Encoder(build_model(spec, parameters, dtype), preprocessing, tokenizer, provenance, name, mesh)
    encoder.training_images = read_training_images(folder)
    return encoder
