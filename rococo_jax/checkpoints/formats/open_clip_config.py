"""Convert open_clip's `model_cfg` and `preprocess_cfg` to our specs and back.

Defaults are those of open_clip's `CLIPVisionCfg` and `CLIPTextCfg`. Fields that change a tower in a way that is not
supported here are refused, and so are unknown fields. `timm_towers` has timm's image towers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.checkpoints.families.bert import BERT, ROBERTA, Bert
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.formats.huggingface import check_spec_round_trip
from rococo_jax.checkpoints.formats.timm_towers import timm_tower
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.models import HeadSpec, ModelSpec, ResNetSpec, TextSpec, VisionSpec
from rococo_jax.models.spec import Activation

_VISION = {
    "layers": 12, "width": 768, "head_width": 64, "mlp_ratio": 4.0, "patch_size": 16, "image_size": 224,
    "ls_init_value": None, "no_ln_pre": False, "pool_type": "tok", "act_kwargs": None, "norm_kwargs": None,
    "attentional_pool": False, "attn_pooler_heads": 8, "attn_pooler_queries": 256, "final_ln_after_pool": False,
    "timm_model_name": None, "timm_pool": "avg", "timm_proj": "linear", "timm_proj_bias": False,
}  # fmt: skip
_TEXT = {
    "context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12, "mlp_ratio": 4.0,
    "eos_id": 2, "no_causal_mask": False, "pool_type": "argmax", "proj_bias": False, "proj_type": "linear",
    "act_kwargs": None, "norm_kwargs": None, "embed_cls": False, "pad_id": 0,
    "hf_model_name": None, "hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler",
}  # fmt: skip
# Used in training or for loading other weights alone; and the name of the tokenizer.
_WITHOUT_EFFECT = {
    "patch_dropout", "output_tokens", "pos_embed_type", "timm_model_pretrained", "timm_drop", "timm_drop_path",
    "hf_tokenizer_name", "hf_model_pretrained", "tokenizer_kwargs",
    "block_type", "attn_pooler_queries", "attn_pooler_heads", "n_queries",
}  # fmt: skip
# Fields that may be present if they are off.
_MUST_BE_OFF = {
    "qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc", "input_patchnorm",
    "global_average_pool", "use_pad_mask", "correct_cls_mask", "tokenizer_mode", "vocab_path",
    "final_ln_after_pool", "ls_init_value",  # of texts
}  # fmt: skip
# Fields of a model. Those of the last line are used in training or by a decoder of captions alone.
_MODEL = {"vision_cfg": {}, "text_cfg": {}, "embed_dim": None, "quick_gelu": None, "init_logit_bias": None}
_MODEL |= dict.fromkeys(("force_quick_gelu", "pretrained_cfg", "preprocess_cfg"))
_MODEL |= dict.fromkeys(("init_logit_scale", "nonscalar_logit_scale", "custom_text", "multimodal_cfg", "output_dict"))
TEXT_FAMILIES: dict[str, Bert] = {kind: family for family in (BERT, ROBERTA) for kind in family.model_types}
EXPRESSIBLE = "only what open_clip's own towers can express"  # of exports
_VIT_FIELDS = fields("""
    image_size  image_size  side
    patch_size  patch_size  side
    width       width       whole
    layers      layers      whole
""")
_TEXT_FIELDS = fields("""
    width            width           whole
    layers           layers          whole
    vocabulary_size  vocab_size      whole
    context_length   context_length  whole
    heads            heads           whole
""")


def spec_from_open_clip(
    config: Any, path: Path, tensors: Tensors, activation: Callable[[], Activation], hf_config: Mapping[str, Any] | None
) -> ModelSpec:
    """Return the spec of a `model_cfg`; the sizes of timm's towers are read from `tensors`.

    Args:
        activation: gives the activation of a tower of open_clip's own; it is called only if there is one.
        hf_config: the `config.json` of a Hugging Face text tower.

    Raises InputError if a field is missing, unknown, or not supported by the towers here.
    """
    model = _section(path, "model_cfg", config, _MODEL)
    vision = _section(path, "vision_cfg", model.values["vision_cfg"], _VISION)
    text = _section(path, "text_cfg", model.values["text_cfg"], _TEXT)
    dim = model.integer("embed_dim")
    if vision.values["timm_model_name"]:
        image_tower, image_head = timm_tower(vision, tensors, dim)
    elif isinstance(vision.values["layers"], list):
        image_tower, image_head = _resnet(vision), HeadSpec("linear", dim, bias=True)
    else:
        image_tower, image_head = _vit(vision, dim, activation), HeadSpec("linear", dim)
    if hf_config is None:
        text_tower, text_head = _text(text, dim, activation)
    else:
        hf_section = Section(path, str(text.values["hf_model_name"]), hf_config, {})
        text_tower, text_head = _hf_text(text, hf_section, dim)
    has_bias = config.get("init_logit_bias") is not None
    return ModelSpec(image_tower, text_tower, image_head, text_head, logit_bias=has_bias)


def _section(path: Path, name: str, values: Any, defaults: Mapping[str, Any]) -> Section:
    """Return a section without unknown fields. Raises InputError for those, and for fields that must be off."""
    section = Section(path, name, values, defaults)
    for key, value in section.values.items():
        if key in defaults:
            continue
        if key in _MUST_BE_OFF and value:
            raise section.refuse(key, "a model without it")
        if key not in _WITHOUT_EFFECT | _MUST_BE_OFF:
            raise InputError(path, f"{name}.{key}", repr(value), "only fields whose meaning is known")
    if section.values.get("block_type") not in (None, "default"):
        raise section.refuse("block_type", "default")
    return section


def _activation(section: Section, activation: Callable[[], Activation]) -> Activation:
    arguments = section.values["act_kwargs"]
    if arguments is None:
        return activation()
    # Only GELU takes arguments; QuickGELU has none.
    if arguments != {"approximate": "tanh"}:
        raise section.refuse("act_kwargs", '{"approximate": "tanh"}')
    return "gelu_tanh"


def _eps(section: Section) -> float:
    arguments = section.values["norm_kwargs"] or {}
    if not isinstance(arguments, Mapping) or not set(arguments) <= {"eps"}:
        raise section.refuse("norm_kwargs", "eps alone")
    return float(arguments.get("eps", 1e-5))


def _vit(section: Section, dim: int, activation: Callable[[], Activation]) -> VisionSpec:
    poolings = {"tok": "cls", "avg": "mean"}
    if section.values["pool_type"] not in poolings:
        raise section.refuse("pool_type", " or ".join(poolings))
    width, pooling = section.integer("width"), poolings[section.values["pool_type"]]
    pooling_fields: dict[str, Any] = {"norm_after_pooling": section.flag("final_ln_after_pool")}
    if section.values["attentional_pool"]:
        # Published CoCa models have true; "parallel" and "cascade" are another pooling.
        if section.values["attentional_pool"] is not True or pooling != "cls":
            raise section.refuse("attentional_pool", "true, with pool_type tok, or false")
        pooling_fields = {"pooling_heads": section.integer("attn_pooler_heads"), "pooling_width": dim}
        pooling = "cross"
    return VisionSpec(
        **_VIT_FIELDS.read(section),
        heads=width // section.integer("head_width"),
        mlp_width=int(width * section.number("mlp_ratio")),
        activation=_activation(section, activation),
        norm_eps=_eps(section),
        class_token=True,
        patch_bias=False,
        norm_before_blocks=not section.flag("no_ln_pre"),
        layer_scale=section.values["ls_init_value"] is not None,
        pooling=pooling,
        **pooling_fields,
    )


def _resnet(section: Section) -> ResNetSpec:
    layers, width = section.values["layers"], section.integer("width")
    if len(layers) != 4 or not all(isinstance(count, int) for count in layers):
        raise section.refuse("layers", "four numbers of blocks")
    heads = 32 * width // section.integer("head_width")
    return ResNetSpec(section.side("image_size"), width, tuple(layers), heads)


def _text(section: Section, dim: int, activation: Callable[[], Activation]) -> tuple[TextSpec, HeadSpec]:
    poolings = {"argmax": "highest_id", "eos": "first_eos", "last": "last"}
    pooling = poolings.get(section.values["pool_type"])
    is_full = section.flag("no_causal_mask")
    if pooling is None or (pooling == "last" and not is_full):
        raise section.refuse("pool_type", "argmax or eos, or last without a causal mask")
    if section.flag("embed_cls"):
        if is_full:
            raise section.refuse("embed_cls", "false without a causal mask")
        pooling = "appended"
    text = TextSpec(
        **_TEXT_FIELDS.read(section),
        mlp_width=int(section.integer("width") * section.number("mlp_ratio")),
        activation=_activation(section, activation),
        norm_eps=_eps(section),
        attention="full" if is_full else "causal",
        norm_after_blocks=False,
        pooling=pooling,
        eos_id=section.integer("eos_id") if pooling == "first_eos" else None,
        pad_id=section.values["pad_id"] if pooling == "appended" else None,
    )
    if section.values["proj_type"] not in ("linear", "none"):
        raise section.refuse("proj_type", "linear or none")
    if section.values["proj_type"] == "none":
        return text, HeadSpec()
    return text, HeadSpec("linear", dim, bias=section.flag("proj_bias"))


def _hf_text(section: Section, hf_section: Section, dim: int) -> tuple[TextSpec, HeadSpec]:
    if (kind := hf_section.values.get("model_type")) not in TEXT_FAMILIES:
        expected = f"one of {', '.join(TEXT_FAMILIES)}; open_clip:ARCHITECTURE/TAG runs open_clip itself"
        raise InputError(section.source, f"model_type of {hf_section.name}", repr(kind), expected)
    family = TEXT_FAMILIES[kind]
    poolings = family.open_clip_poolings
    if section.values["hf_pooler_type"] not in poolings:
        raise section.refuse("hf_pooler_type", " or ".join(poolings))
    text = family.text_tower(hf_section, poolings[section.values["hf_pooler_type"]])
    kind = section.values["hf_proj_type"]
    if kind not in ("linear", "mlp", None):
        raise section.refuse("hf_proj_type", "linear or mlp")
    if kind == "mlp":
        return text, HeadSpec("mlp", dim, hidden=(text.width + dim) // 2)
    return text, HeadSpec() if kind is None and text.width == dim else HeadSpec("linear", dim)


def model_config(spec: ModelSpec, name: str) -> dict[str, Any]:
    """Return the `model_cfg` of a model. Raises InputError if open_clip's own towers cannot express it."""
    vision, text = spec.vision, spec.text
    if text is None or text.attention != "causal" or not isinstance(vision, VisionSpec | ResNetSpec):
        raise InputError(name, "towers", "a single tower, or one that open_clip does not have itself", EXPRESSIBLE)
    config: dict[str, Any] = {"embed_dim": spec.dim, "quick_gelu": text.activation == "quick_gelu"}
    if text.pooling == "first_eos" or spec.text_head.bias:
        config["custom_text"] = True
    if spec.logit_bias:
        config["init_logit_bias"] = -10.0
    config |= {"vision_cfg": _vision_config(vision), "text_cfg": _text_config(spec, text)}
    activation = "quick_gelu" if config["quick_gelu"] else "gelu"
    back = spec_from_open_clip(config, Path(name), Tensors(Path(name), {}, dict), lambda: activation, None)
    check_spec_round_trip(back, spec, name, EXPRESSIBLE)
    return config


def _vision_config(spec: VisionSpec | ResNetSpec) -> dict[str, Any]:
    if isinstance(spec, ResNetSpec):
        head_width, layers = spec.features // spec.heads, list(spec.stage_layers)
        return {"image_size": spec.image_size, "layers": layers, "width": spec.width, "head_width": head_width}
    config = {
        **_VIT_FIELDS.write(spec),
        "head_width": spec.width // spec.heads,
        "mlp_ratio": spec.mlp_width / spec.width,
        "pool_type": "avg" if spec.pooling == "mean" else "tok",
        "no_ln_pre": not spec.norm_before_blocks,
        "norm_kwargs": {"eps": spec.norm_eps},
    }
    return {**config, "ls_init_value": 1.0} if spec.layer_scale else config


def _text_config(spec: ModelSpec, text: TextSpec) -> dict[str, Any]:
    config = {
        **_TEXT_FIELDS.write(text),
        "mlp_ratio": text.mlp_width / text.width,
        "pool_type": "eos" if text.pooling == "first_eos" else "argmax",
        "proj_bias": spec.text_head.bias,
        "norm_kwargs": {"eps": text.norm_eps},
    }
    return config if text.eos_id is None else {**config, "eos_id": text.eos_id}


def preprocess_config(preprocessing: Preprocessing, name: str) -> dict[str, Any]:
    """Return the `preprocess_cfg` of a model. Raises InputError if open_clip cannot express it."""
    height, width = preprocessing.image_size
    is_square = height == width == (preprocessing.shortest_edge or height)
    if not is_square or abs(preprocessing.rescale_factor - 1 / 255) > 1e-12:
        raise InputError(name, "preprocessing", preprocessing.describe(), EXPRESSIBLE)
    return {
        "size": [height, width],
        "mode": "RGB",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.resample,
        "resize_mode": "squash" if preprocessing.shortest_edge is None else "shortest",
        "fill_color": 0,
    }
