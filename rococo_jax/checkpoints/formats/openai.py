"""OpenAI's CLIP: the nine published archives, and state dicts in their naming.

An archive is a TorchScript module in half precision. The architecture is in the shapes, as OpenAI's own `build_model`
reads it; heads are 64 wide everywhere. Images: shortest side resized (bicubic), centre crop. The BPE vocabulary is not
in the archive; it is that of the hub's `openai/clip-vit-base-patch32`.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.checkpoints.families.clip import CLIP, CLIP_VISION
from rococo_jax.checkpoints.formats.openai_names import openai_table
from rococo_jax.checkpoints.formats.timm_towers import find_timm_tower
from rococo_jax.checkpoints.formats.torch_archive import read_torch_archive
from rococo_jax.checkpoints.hub import choose_tokenizer
from rococo_jax.checkpoints.parameters import Checkpoint, Choices, parameter_shapes
from rococo_jax.checkpoints.tensors import Tensors, read_parameters
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, ResNetSpec, TextSpec, VisionSpec
from rococo_jax.models.spec import Activation
from rococo_jax.storage import hash_file

TOKENIZER = "openai/clip-vit-base-patch32"
# SHA-256 of the files, which is also how their addresses are made.
PUBLISHED = {
    "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762": "RN50",
    "8fa8567bab74a42d41c5915025a8e4538c3bdbe8804a470a72f30b0d94fab599": "RN101",
    "7e526bd135e493cef0776de27d5f42653e6b4c8bf9e0f653bb11773263205fdd": "RN50x4",
    "52378b407f34354e150460fe41077663dd5b39c54cd0bfd2b27167a4a06ec9aa": "RN50x16",
    "be1cfb55d75a9666199fb2206c106743da0f6468c9d327f3e0d0a543a9919d9c": "RN50x64",
    "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af": "ViT-B/32",
    "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f": "ViT-B/16",
    "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836": "ViT-L/14",
    "3035c92b350959924f9f00213499208652fc7ea050643e8b385c2dac08641f02": "ViT-L/14@336px",
}
ACTIVATIONS = ("quick_gelu", "gelu")
# In this order: the longer names are exceptions to the shorter ones.
_KNOWN_NAMES: tuple[tuple[str, Activation], ...] = (
    (r"openai", "quick_gelu"),
    (r"quick_?gelu", "quick_gelu"),
    (r"metaclip_altogether", "gelu"),
    (r"metaclip", "quick_gelu"),
    (r"dfn2b.*39b", "gelu"),
    (r"dfn[25]b", "quick_gelu"),
    (r"resnet.*_clip_(yfcc15m|cc12m)", "quick_gelu"),
    (r"vit_base_patch32_clip_224_laion400m", "quick_gelu"),
    (r"vit_(base_patch16|large_patch14).*_laion400m", "gelu"),
    (r"clipa_|coca_|convnext|mobileclip|eva0?[12]?_|eva_giant|pe_core", "gelu"),
    (r"laion2b|laion5b|laion_aesthetic|datacomp|commonpool|nllb_(clip|siglip)", "gelu"),
)
_OWN_NUMBERS = {"input_resolution", "context_length", "vocab_size"}
_HEAD_WIDTH = 64


def read_openai(source: str | Path, choices: Choices) -> Checkpoint:
    """Reads a `.pt` file."""
    path = Path(source)
    digest = hash_file(path)
    _, tensors = read_torch_archive(path)
    with tensors:
        published = PUBLISHED.get(digest)
        archive = published is not None or set(tensors.names) >= _OWN_NUMBERS
        known, how = activation_of_openai(source, choices.activation, archive=archive, declared=choices.declared)
        spec = spec_from_tensors(tensors, known)
        axes = len(tensors.shape("logit_scale"))
        parameters = read_parameters(tensors, openai_table(spec, scalar_axes=axes), parameter_shapes(spec))
    config = {"model_type": "clip", "text_config": {"max_position_embeddings": spec.text.context_length}}
    tokenizer, tokenizer_from = choose_tokenizer(
        source, choices.tokenizer, None, TOKENIZER, functools.partial(CLIP.read_tokenizer, config=config)
    )
    provenance = {
        "source": str(source),
        "format": "openai",
        "model_type": published or ("resnet" if isinstance(spec.vision, ResNetSpec) else "clip"),
        "file_sha256": digest,
        "activation": f"{known}: {how}",
        "preprocessing": "OpenAI's",
        "tokenizer": tokenizer_from,
    }
    return Checkpoint(spec, parameters, clip_preprocessing(spec.vision.image_size), tokenizer, provenance)


def clip_preprocessing(size: int):
    """CLIP's: the shortest side to `size`, a crop of the middle, CLIP's statistics."""
    return Preprocessing.from_huggingface(CLIP.processor).with_image_size(size)


def spec_from_tensors(tensors: Tensors, activation: Activation) -> ModelSpec:
    """The spec, read off the shapes. Raises InputError where they are not those of a CLIP."""
    shapes = {name: tensors.shape(name) for name in tensors.names}
    needed = ("text_projection", "positional_embedding", "token_embedding.weight", "ln_final.weight", "logit_scale")
    needed += ("transformer.resblocks.0.mlp.c_fc.weight",)
    resnet = "visual.layer1.0.conv1.weight" in shapes
    tensors.require(needed + (_RESNET_NEEDS if resnet else _VIT_NEEDS), "the weights of OpenAI's CLIP")
    width = shapes["ln_final.weight"][0]
    text = TextSpec(
        vocabulary_size=shapes["token_embedding.weight"][0],
        context_length=shapes["positional_embedding"][0],
        width=width,
        layers=tensors.count(r"transformer\.resblocks\.(\d+)\."),
        heads=_heads(tensors, width),
        mlp_width=shapes["transformer.resblocks.0.mlp.c_fc.weight"][0],
        activation=activation,
        norm_eps=1e-5,
        attention="causal",
        norm_after_blocks=False,
        pooling="highest_id",
    )
    head = HeadSpec("linear", shapes["text_projection"][-1])
    if resnet:
        return ModelSpec(_resnet(tensors, shapes), text, HeadSpec("linear", head.dim, bias=True), head)
    return ModelSpec(_vit(tensors, shapes, activation), text, head, head)


_RESNET_NEEDS = ("visual.attnpool.positional_embedding",)
_VIT_NEEDS = ("visual.conv1.weight", "visual.positional_embedding", "visual.transformer.resblocks.0.mlp.c_fc.weight")


def _resnet(tensors: Tensors, shapes: dict[str, tuple[int, ...]]) -> ResNetSpec:
    width = shapes["visual.layer1.0.conv1.weight"][0]
    return ResNetSpec(
        image_size=32 * round((shapes["visual.attnpool.positional_embedding"][0] - 1) ** 0.5),
        width=width,
        stage_layers=tuple(tensors.count(rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)),
        heads=_heads(tensors, 32 * width),
    )


def _vit(tensors: Tensors, shapes: dict[str, tuple[int, ...]], activation: Activation) -> VisionSpec:
    width, _, _, patch = shapes["visual.conv1.weight"]
    return VisionSpec(
        image_size=patch * round((shapes["visual.positional_embedding"][0] - 1) ** 0.5),
        patch_size=patch,
        width=width,
        layers=tensors.count(r"visual\.transformer\.resblocks\.(\d+)\."),
        heads=_heads(tensors, width),
        mlp_width=shapes["visual.transformer.resblocks.0.mlp.c_fc.weight"][0],
        activation=activation,
        norm_eps=1e-5,
        **CLIP_VISION,
    )


def _heads(tensors: Tensors, width: int) -> int:
    if width % _HEAD_WIDTH:
        raise InputError(tensors.path, "width", width, f"a multiple of {_HEAD_WIDTH}, the width of CLIP's heads")
    return width // _HEAD_WIDTH


def activation_of_open_clip(
    model_config: Mapping[str, Any], source: object, requested: str | None
) -> tuple[Activation, str]:
    """The activation of an open_clip model's own towers, and how it is known.

    `model_config` is `model_cfg` with `pretrained_cfg` and the like left in. Raises InputError where neither that nor
    the name tells it, and it was not asked for.
    """
    if requested is not None:
        return _checked(requested), "--activation"
    for key in ("quick_gelu", "force_quick_gelu"):
        if isinstance(model_config.get(key), bool):
            return ("quick_gelu" if model_config[key] else "gelu"), f"{key} in the configuration"
    timm = str(model_config.get("vision_cfg", {}).get("timm_model_name"))
    if "_siglip" in timm:
        return "gelu", "SigLIP, never trained with QuickGELU"
    if (tower := find_timm_tower(timm)) is not None and not tower[0].quick_gelu:
        return "gelu", f"beside {timm}, never trained with QuickGELU"
    pretrained = model_config.get("pretrained_cfg")
    if isinstance(pretrained, Mapping) and isinstance(pretrained.get("quick_gelu"), bool):
        return ("quick_gelu" if pretrained["quick_gelu"] else "gelu"), "quick_gelu in pretrained_cfg"
    if (known := activation_by_name(source)) is not None:
        return known, "the name of a known checkpoint"
    raise _unknown(source, "neither quick_gelu in the configuration nor a known name")


def activation_by_name(source: object) -> Activation | None:
    """The activation of a checkpoint that is known by its name, None for others."""
    # The last two parts of a path are a folder's own name and, on the hub, its owner's.
    name = re.sub(r"[-. ]", "_", "/".join(str(source).rstrip("/").split("/")[-2:]).lower())
    return next((activation for pattern, activation in _KNOWN_NAMES if re.search(pattern, name)), None)


def activation_of_openai(
    source: object, requested: str | None, *, archive: bool, declared: bool
) -> tuple[Activation, str]:
    """The activation of weights in OpenAI's form, and how it is known.

    Args:
        archive: the file is one of OpenAI's, or has the numbers that OpenAI's code alone stores beside the weights.
        declared: the user asked for the format `openai`: OpenAI's code knows QuickGELU only.

    Raises InputError for a bare state dict, which open_clip writes under the same names.
    """
    if requested is not None:
        return _checked(requested), "--activation"
    if archive:
        return "quick_gelu", "OpenAI's archive"
    if declared:
        return "quick_gelu", "--source-format openai"
    raise _unknown(source, "a bare state dict, as OpenAI's code and open_clip write alike")


def _checked(requested: str) -> Activation:
    if requested not in ACTIVATIONS:
        raise InputError("activation", "activation", requested, " or ".join(ACTIVATIONS))
    return requested


def _unknown(source: object, found: str) -> InputError:
    wanted = (
        f"the argument activation, {' or '.join(ACTIVATIONS)}: quick_gelu for models that were trained "
        "with --force-quick-gelu or a '-quickgelu' architecture, or from OpenAI's weights, else gelu; both run, one is "
        "wrong, and nothing in the weights tells"
    )
    return InputError(source, "activation", found, wanted)
