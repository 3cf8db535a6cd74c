"""OpenAI's CLIP: the nine published archives, and state dicts under the same names.

An archive is a TorchScript module in half precision. The architecture follows from the shapes, as in OpenAI's own
`build_model`, with heads 64 wide. Other state dicts with these names have the heads of open_clip's configuration of
their width and depth; the caller has to give those of other sizes. Images: shortest side resized (bicubic), centre
crop. The archive does not have the BPE vocabulary, which is that of the hub's `openai/clip-vit-base-patch32`.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from rococo_jax.checkpoints.families.clip import CLIP
from rococo_jax.checkpoints.formats.activation import activation_of_openai
from rococo_jax.checkpoints.formats.base import Format, choose_tokenizer
from rococo_jax.checkpoints.formats.open_clip_config import spec_from_open_clip
from rococo_jax.checkpoints.formats.openai_names import LONG_CLIP, openai_table
from rococo_jax.checkpoints.image_sizes import OPEN_CLIP_SIZES, image_size_of
from rococo_jax.checkpoints.names import read_parameters
from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    ConversionOptions,
    missing_choice,
)
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizer_files import read_open_clip_tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec, ResNetSpec
from rococo_jax.models.spec import Activation
from rococo_jax.storage import hash_file

TOKENIZER = "openai/clip-vit-base-patch32"
# SHA-256 of the files, which is also a part of their addresses.
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
_STORED_SIZE = "input_resolution"
_ARCHIVE_NUMBERS = {_STORED_SIZE, "context_length", "vocab_size"}
_RESNET_STRIDE = 32
_HEAD_WIDTH = 64
# (width, layers) of the towers in open_clip's configurations whose heads are 64 wide, and of those with 16 heads.
_HEADS_OF_64 = {
    "vision": {(384, 12), (512, 12), (768, 12), (896, 12), (1024, 24)},
    "text": {(256, 10), (384, 12), (512, 12), (640, 12), (768, 12), (768, 16), (1024, 12), (1024, 20), (1024, 24)}
    | {(1280, 24), (1280, 32), (1280, 36)},
}
_16_HEADS = {"vision": {(1280, 32), (1408, 40), (1664, 48), (1792, 56)}, "text": {(1152, 27)}}
# Vocabulary sizes of open_clip models under OpenAI's names whose texts are masked or pooled in another way.
_OTHER_TEXTS = {32_000: "CLIPA", 250_100: "MetaCLIP 2", 901_629: "MetaCLIP 2"}
_CONFIGURED = "another architecture of open_clip is read from a folder with its open_clip_config.json"


# The start of a name, the project that writes it, and the form in which the weights are read.
_SAVED = "the folder that save_pretrained() writes: config.json beside the weights"
_OTHER_PROJECTS = (
    (
        r"visual\.blocks\.\d+\.",
        "EVA-CLIP's own code",
        "timm's copy of the weights, such as zoo:EVA02-L-14/merged2b_s4b_b131k",
    ),
    (
        r"visual\.attn_pool\.probe$",
        "PE-Core's own code",
        "timm's copy of the weights, such as zoo:PE-Core-L-14-336/meta",
    ),
    (
        r"(image|text)_encoder\.",
        "MobileCLIP's own code",
        "open_clip's copy of the weights, such as zoo:MobileCLIP-B/datacompdr "
        "(open_clip:MobileCLIP-S1/datacompdr runs S1 and S2 in open_clip)",
    ),
    (
        r"_(image|text)_encoder\.",
        "TinyCLIP's own code",
        "its copy on the hub, such as wkcn/TinyCLIP-ViT-40M-32-Text-19M-LAION400M",
    ),
    (r"(text|vision)_model\.", "a model of transformers", _SAVED),
    (r"(\w+\.)?encoder\.layers?\.\d+\.", "a model of transformers", _SAVED),
    (r"visual\.trunk\.", "open_clip with timm's image towers", "the folder with its open_clip_config.json"),
)


def read_openai(source: str | Path, options: ConversionOptions) -> Checkpoint:
    """Read a `.pt` file."""
    path = Path(source)
    digest = hash_file(path)
    with open_torch_archive(path).unwrapped() as tensors:
        _refuse_other_names(tensors)
        _refuse_other_texts(tensors)
        published = PUBLISHED.get(digest)
        openai_origin = _openai_origin(tensors, published is not None, options.is_format_declared)
        activation, activation_from = activation_of_openai(source, options.activation, openai_origin)
        heads, heads_from = choose_heads(source, options.heads, openai_origin)
        spec, size_from = spec_from_tensors(tensors, activation, heads, options.image_size)
        axes = len(tensors.shape("logit_scale"))
        parameters = read_parameters(
            tensors, openai_table(spec, scalar_axes=axes, long_clip=LONG_CLIP in tensors.names)
        )
    length = spec.text.context_length
    read = functools.partial(read_open_clip_tokenizer, kind="clip", length=length, arguments={}, simple=True)
    tokenizer, tokenizer_from = choose_tokenizer(source, options.tokenizer, None, TOKENIZER, read)
    provenance = {
        "source": str(source),
        "format": "openai",
        "model_type": published or ("resnet" if isinstance(spec.vision, ResNetSpec) else "clip"),
        "file_sha256": digest,
        "weights": tensors.origin,
        "read_from": {
            "image size": size_from,
            "other": "OpenAI's code and the shapes of the tensors",
            **dict.fromkeys(("image activation", "text activation"), activation_from),
            **dict.fromkeys(("image heads", "text heads"), heads_from),
        },
        "tokenizer": tokenizer_from,
    }
    return Checkpoint(spec, parameters, clip_preprocessing(spec.vision.image_size), tokenizer, provenance)


OPENAI = Format("openai", read_openai, suffixes=(".pt", ".pth", ".bin"), options=frozenset(("activation", "heads")))


def _openai_origin(tensors: Tensors, is_published: bool, is_declared: bool) -> str | None:
    """Return why a file is one of OpenAI's or trained from them; None for a bare state dict, which may be another's."""
    if LONG_CLIP in tensors.names:
        return "Long-CLIP"
    if is_published or set(tensors.names) >= _ARCHIVE_NUMBERS:
        return "OpenAI's archive"
    return "the format openai" if is_declared else None


def _refuse_other_names(tensors: Tensors) -> None:
    """Raise InputError if the tensors do not have OpenAI's names, with the project whose names they have."""
    for pattern, project, expected in _OTHER_PROJECTS:
        if matches := [name for name in tensors.names if re.match(pattern, name)]:
            raise InputError(tensors.path, "tensors", f"names of {project}, such as {matches[0]}", expected)
    is_resnet = "visual.layer1.0.conv1.weight" in tensors.names
    tensors.require(_TEXT_TENSORS + (_RESNET_TENSORS if is_resnet else _VIT_TENSORS), "the weights of OpenAI's CLIP")


def _refuse_other_texts(tensors: Tensors) -> None:
    """Raise InputError for the vocabulary of a model whose texts are masked or pooled in another way."""
    name = "token_embedding.weight"
    words = tensors.shape(name)[0] if name in tensors.names else None
    if model := _OTHER_TEXTS.get(words):
        expected = f"49,408, CLIP's: the weights do not record the mask and the pooling of other texts; {_CONFIGURED}"
        raise InputError(tensors.path, name, f"{words:,} words, as of {model}", expected)


def clip_preprocessing(size: int):
    """Return CLIP's preprocessing: shortest side resized to `size`, centre crop, CLIP's statistics."""
    preprocessing = Preprocessing.from_huggingface(CLIP.processor).with_image_size(size)
    return dataclasses.replace(preprocessing, library="open_clip")


def spec_from_tensors(
    tensors: Tensors, activation: Activation, heads: Callable[[str, int, int], int], requested_size: int | None = None
) -> tuple[ModelSpec, str]:
    """Return the spec that the shapes imply, and how the image size is known.

    The shapes become a `model_cfg` of open_clip, whose defaults are OpenAI's models.

    Args:
        heads: gives the heads of a tower (vision or text) by width and layers.
        requested_size: the image size that the caller chose.

    Raises InputError if the shapes are not those of a CLIP, or fit several image sizes.
    """
    shapes = {name: tensors.shape(name) for name in tensors.names}
    is_resnet = "visual.layer1.0.conv1.weight" in shapes
    patch = _RESNET_STRIDE if is_resnet else shapes["visual.conv1.weight"][-1]
    positions = "visual.attnpool.positional_embedding" if is_resnet else "visual.positional_embedding"
    size, size_from = _image_size(tensors, positions, patch, requested_size)
    width, layers = shapes["ln_final.weight"][0], tensors.count(r"transformer\.resblocks\.(\d+)\.")
    text = {
        "vocab_size": shapes["token_embedding.weight"][0],
        "context_length": shapes["positional_embedding"][0],
        "width": width,
        "layers": layers,
        "heads": heads("text", width, layers),
        "mlp_ratio": _mlp_ratio(shapes, "", width),
    }
    if is_resnet:
        width = shapes["visual.layer1.0.conv1.weight"][0]
        stages = [tensors.count(rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)]
        head_width = 32 * width // _heads_of_64(tensors.path, 32 * width)
        vision = {"width": width, "layers": stages, "head_width": head_width}
    else:
        width, layers = shapes["visual.conv1.weight"][0], tensors.count(r"visual\.transformer\.resblocks\.(\d+)\.")
        head_width = width // heads("vision", width, layers)
        vision = {"width": width, "layers": layers, "head_width": head_width, "patch_size": patch}
        vision["mlp_ratio"] = _mlp_ratio(shapes, "visual.", width)
    config = {"embed_dim": shapes["text_projection"][-1], "vision_cfg": {**vision, "image_size": size}}
    return spec_from_open_clip({**config, "text_cfg": text}, tensors.path, tensors, lambda: activation, None), size_from


def _mlp_ratio(shapes: Mapping[str, tuple[int, ...]], prefix: str, width: int) -> float:
    """Return a ratio of which the width of the MLP is the rounded-down product with the width of the tower."""
    return (shapes[f"{prefix}transformer.resblocks.0.mlp.c_fc.weight"][0] + 0.5) / width


def _image_size(tensors: Tensors, name: str, patch: int, requested: int | None) -> tuple[int, str]:
    """Return the image size and how it is known.

    It is the size that OpenAI's archives store if the positions fit it, else that of the positions, as in OpenAI's
    `build_model`.
    """
    positions = tensors.shape(name)[0] - 1
    if _STORED_SIZE in tensors.names and tensors.shape(_STORED_SIZE) == ():
        stored = int(tensors.read(_STORED_SIZE))
        if (stored // patch) ** 2 == positions:
            return stored, _STORED_SIZE
    return image_size_of(tensors.path, name, patch, positions, OPEN_CLIP_SIZES, requested)


_TEXT_TENSORS = (
    "text_projection",
    "positional_embedding",
    "token_embedding.weight",
    "ln_final.weight",
    "logit_scale",
    "transformer.resblocks.0.mlp.c_fc.weight",
)
_RESNET_TENSORS = ("visual.attnpool.positional_embedding",)
_VIT_TENSORS = ("visual.conv1.weight", "visual.positional_embedding", "visual.transformer.resblocks.0.mlp.c_fc.weight")


def _heads_of_64(source: object, width: int) -> int:
    """Return the heads of OpenAI's own models, 64 wide as in its `build_model`."""
    if width % _HEAD_WIDTH:
        raise InputError(source, "width", width, f"a multiple of {_HEAD_WIDTH}, the width of CLIP's heads")
    return width // _HEAD_WIDTH


def _published_heads(source: object, tower: str, width: int, layers: int) -> int:
    """Return the heads of a tower with the size of one of open_clip's configurations; InputError for other sizes."""
    if (width, layers) in _16_HEADS[tower]:
        return 16
    if (width, layers) in _HEADS_OF_64[tower]:
        return width // _HEAD_WIDTH
    problem = f"{tower} tower of {layers} layers of {width}, no size of open_clip's configurations"
    expected = f"such as 16,8 for image and text: the weights do not record the heads; {_CONFIGURED}"
    raise missing_choice(source, "heads", problem, expected)


def choose_heads(
    source: object, requested: str | None, openai_origin: str | None
) -> tuple[Callable[[str, int, int], int], str]:
    """Return the function from a tower, its width and its layers to its number of heads, and how that is known.

    `requested` is "image,text"; `openai_origin` says why the file is one of OpenAI's, None for other files.
    """
    if requested is not None:
        numbers = [number.strip() for number in requested.split(",")]
        if len(numbers) != 2 or not all(number.isdecimal() and int(number) for number in numbers):
            raise InputError("heads", "argument", repr(requested), "two numbers, of image and text tower: 16,8")
        return lambda tower, width, layers: int(numbers[tower == "text"]), "the argument heads"
    if openai_origin is not None:
        return lambda tower, width, layers: _heads_of_64(source, width), f"64 wide, {openai_origin}"
    return functools.partial(_published_heads, source), "open_clip's configurations, by width and layers"
