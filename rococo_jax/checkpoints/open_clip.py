"""open_clip folders and hub names: `open_clip_config.json` beside `open_clip_model.safetensors` (or an older `.bin`).

open_clip crops the middle of an image as torchvision does: where an odd number of pixels is left over, its crop may lie
one pixel from the one taken here, which is that of the processors of `transformers`.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from rococo_jax.checkpoints.activation import activation_of_open_clip
from rococo_jax.checkpoints.name_table import read_parameters
from rococo_jax.checkpoints.open_clip_config import HF_FAMILIES, spec_from_open_clip
from rococo_jax.checkpoints.openai import TOKENIZER
from rococo_jax.checkpoints.openai_names import openai_table
from rococo_jax.checkpoints.parameters import ModelParts, assemble_parts, parameter_shapes
from rococo_jax.checkpoints.safetensors_folder import TensorSource
from rococo_jax.checkpoints.tokenizer_choice import choose_tokenizer
from rococo_jax.checkpoints.torch_archive import read_torch_archive
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.models.spec import Activation
from rococo_jax.storage import read_json

CONFIG = "open_clip_config.json"
SAFETENSORS = ("open_clip_model.safetensors", "model.safetensors")
PICKLES = ("open_clip_pytorch_model.bin", "open_clip_pytorch_model.pt")
_MEAN, _STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_FILTERS = {"bicubic": 3, "bilinear": 2}


def convert_open_clip(
    source: str | Path,
    folder: Path,
    *,
    activation: str | None = None,
    tokenizer: str | None = None,
    dtype: DTypeLike = jnp.float32,
    image_size: int | None = None,
) -> ModelParts:
    """The parts of an `Encoder`.

    Args:
        source: as the user named it: the folder, or the hub name that it is the snapshot of.
        folder: where the files are.
        activation: `quick_gelu` or `gelu`, where neither the configuration nor the name says it.
        tokenizer: a folder or hub name, `none`, or None for what the configuration says.
        dtype: of the compute.
        image_size: for images of another size than the checkpoint's.

    Raises:
        InputError: anything about the source that is missing, unknown, broken or does not fit together.
    """
    path = folder / CONFIG
    config = read_json(path, "an open_clip configuration")
    model = config.get("model_cfg", config) if isinstance(config, Mapping) else None
    if not isinstance(model, Mapping) or not all(isinstance(model.get(k), Mapping) for k in ("vision_cfg", "text_cfg")):
        raise InputError(path, "model_cfg", "no vision_cfg and text_cfg", "the configuration of an image-text model")
    known: list[str] = []

    def choose_activation() -> Activation:
        chosen, how = activation_of_open_clip({**config, **model}, source, activation)
        known[:] = [f"{chosen}: {how}"]
        return chosen

    hf_config = _hf_config(model["text_cfg"], path)
    with _tensors(folder) as tensors:
        spec = spec_from_open_clip(model, path, tensors, choose_activation, hf_config)
        table = openai_table(
            spec,
            custom_text=any(name.startswith("text.") for name in tensors.names),
            timm=any(name.startswith("visual.trunk.") for name in tensors.names),
            roberta=(hf_config or {}).get("model_type") in ("roberta", "xlm-roberta"),
            scalar_axes=len(tensors.shape("logit_scale")) if "logit_scale" in tensors.names else 0,
        )
        parameters = read_parameters(tensors, table, parameter_shapes(spec))
    preprocessing, read_from = _preprocessing(config, path, spec)
    chosen, tokenizer_from = _tokenizer(source, folder, model["text_cfg"], spec, hf_config, tokenizer)
    provenance = {
        "source": str(source),
        "format": "open_clip",
        "model_type": "clip" if spec.text.attention != "full" else "siglip",
        "activation": known[0] if known else "fixed by the towers' kind",
        "preprocessing": read_from,
        "tokenizer": tokenizer_from,
    }
    return assemble_parts(spec, parameters, preprocessing, chosen, provenance, dtype, image_size)


def _tensors(folder: Path) -> contextlib.AbstractContextManager:
    for name in SAFETENSORS:
        if (folder / name).is_file():
            return TensorSource(folder, name)
    for name in PICKLES:
        if (folder / name).is_file():
            return read_torch_archive(folder / name)[1]
    wanted = " or ".join((*SAFETENSORS[:1], *PICKLES[:1]))
    raise InputError(folder, "weights", "no weight files", wanted)


def _hf_config(text: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    """The `config.json` of a Hugging Face text tower: open_clip keeps only its name."""
    name = text.get("hf_model_name")
    if not name:
        return None
    folder = path.parent / str(name)
    if not (folder / "config.json").is_file():
        folder = Path(str(name))
    if not (folder / "config.json").is_file():
        from huggingface_hub import hf_hub_download

        try:
            folder = Path(hf_hub_download(str(name), "config.json")).parent
        except Exception as error:  # no network, no such name, no right to read it
            found = f"{name}, whose config.json cannot be read ({(str(error).splitlines() or [''])[0]})"
            wanted = "a name on the hub that can be reached, or a folder"
            raise InputError(path, "text_cfg.hf_model_name", found, wanted) from None
    config = read_json(folder / "config.json", "the configuration of a text tower")
    if not isinstance(config, Mapping) or config.get("model_type") not in HF_FAMILIES:
        found = config.get("model_type") if isinstance(config, Mapping) else type(config).__name__
        raise InputError(folder / "config.json", "model_type", repr(found), f"one of {', '.join(HF_FAMILIES)}")
    return config


def _preprocessing(config: Mapping[str, Any], path: Path, spec: ModelSpec):
    from rococo_jax.data.preprocessing import Preprocessing

    given = config.get("preprocess_cfg")
    values = {"mean": _MEAN, "std": _STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    values |= {key: value for key, value in (given or {}).items() if value is not None}
    if values["interpolation"] not in _FILTERS:
        raise InputError(path, "preprocess_cfg.interpolation", values["interpolation"], " or ".join(_FILTERS))
    size = spec.vision.image_size
    common = {"resample": values["interpolation"], "mean": tuple(values["mean"]), "std": tuple(values["std"])}
    if values["resize_mode"] == "shortest":
        made = Preprocessing(shortest_edge=size, crop_size=(size, size), **common)
    elif values["resize_mode"] == "squash":
        made = Preprocessing(exact_size=(size, size), **common)
    else:
        raise InputError(path, "preprocess_cfg.resize_mode", values["resize_mode"], "shortest or squash")
    return made, "preprocess_cfg" if given else "open_clip's default"


def _tokenizer(
    source: object, folder: Path, text: Mapping[str, Any], spec: ModelSpec, hf: Mapping | None, asked: str | None
):
    # Texts of a Hugging Face tower are cut at open_clip's own default, whatever the tower could read.
    kind = hf["model_type"] if hf is not None else "siglip" if spec.text.attention == "full" else "clip"
    default = text.get("hf_tokenizer_name") or TOKENIZER
    length = spec.text.context_length if hf is None else min(spec.text.context_length, text.get("context_length", 77))
    config = {"model_type": kind, "text_config": {"max_position_embeddings": length}}
    return choose_tokenizer(source, asked, folder, default, config)
