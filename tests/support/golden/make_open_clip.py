"""Makes `open_clip_*.json`: what open_clip's towers give, for tests where it is not installed.

    pip install torch==2.13.0 transformers
    pip install --no-deps --target DIR open_clip_torch timm ftfy wcwidth torchvision
    PYTHONPATH=DIR:. python tests/support/golden/make_open_clip.py [--check] [CASE...]

The folder DIR keeps torchvision out of the environment: beside the CPU build of torch its compiled operators cannot
load, and `transformers` would try to. Nothing here needs them, so their registration is skipped while it is imported.
With `--check` nothing is written; the exit code says whether the files are what open_clip gives (to 1e-5).
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from tests.support.golden.weights import ids_for, pixels_for, weights_for

HERE = Path(__file__).parent
VIT = {"image_size": 32, "layers": 2, "width": 128, "patch_size": 8}
TEXT = {"context_length": 12, "vocab_size": 60, "width": 64, "heads": 1, "layers": 2}
SIGLIP_TEXT = {
    **TEXT, "heads": 4, "no_causal_mask": True, "proj_bias": True, "pool_type": "last",
    "tokenizer_kwargs": {"clean": "canonicalize"}, "norm_kwargs": {"eps": 1e-6},
}  # fmt: skip
BERT = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 16,
}  # fmt: skip


def _clip(vision: dict = VIT, text: dict = TEXT, **more) -> dict:
    return {"embed_dim": 24, **more, "vision_cfg": vision, "text_cfg": text}


def _hf(model: str, pooler: str, projection: str = "linear") -> dict:
    return {"hf_model_name": model, "hf_pooler_type": pooler, "hf_proj_type": projection}


def _siglip(model: str, **text) -> dict:
    vision = {"image_size": 32, "timm_model_name": model, "timm_pool": "map", "timm_proj": "none"}
    return _clip(vision, {**SIGLIP_TEXT, **text}, embed_dim=48, init_logit_bias=-10, custom_text=True)


def _timm(model: str, size: int, pool: str = "token", proj: str | None = None, **text) -> dict:
    vision = {"image_size": size, "timm_model_name": model, "timm_pool": pool, "timm_proj": proj}
    return _clip(vision, {**TEXT, **text}, custom_text=True)


CASES = {
    # Names, tensors and activation are those of OpenAI's archives.
    "vit_quick_gelu": _clip(quick_gelu=True),
    "resnet_quick_gelu": _clip(
        {"image_size": 64, "layers": [2, 1, 3, 1], "width": 8, "patch_size": None}, quick_gelu=True
    ),
    # As LAION's ViT-g: heads that are not 64 wide, a ratio that is no whole number, exact GELU.
    "vit_gelu": _clip({**VIT, "width": 88, "head_width": 22, "mlp_ratio": 4.3637}, {**TEXT, "width": 36, "heads": 3}),
    # The options of a ViT, and the text tower apart, ended by an id in the middle of the vocabulary.
    "vit_options": _clip(
        {**VIT, "no_ln_pre": True, "pool_type": "avg", "ls_init_value": 0.1},
        {**TEXT, "pool_type": "eos", "eos_id": 7}, quick_gelu=True, custom_text=True,
    ),
    "siglip": _siglip("vit_base_patch16_siglip_224"),
    "siglip2": _siglip("vit_giantopt_patch16_siglip_256", act_kwargs={"approximate": "tanh"}),
    # As BiomedCLIP.
    "timm_bert": _clip(
        {"image_size": 32, "timm_model_name": "vit_base_patch16_224", "timm_pool": "", "timm_proj": "linear"},
        _hf("bert", "cls_last_hidden_state_pooler", "mlp"), custom_text=True,
    ),
    "roberta": _clip(VIT, _hf("roberta", "mean_pooler"), quick_gelu=True),
    "clipa": _clip(
        {**VIT, "no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
        {**TEXT, "pool_type": "last", "no_causal_mask": True},
    ),
    "coca": _clip(
        {**VIT, "attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 5, "output_tokens": True},
        {**TEXT, "embed_cls": True, "output_tokens": True}, custom_text=True,
        multimodal_cfg={**TEXT, "layers": 1, "attn_pooler_heads": 2},
    ),
    "eva01": _timm("eva_giant_patch14_224", 42),
    "eva02": _timm("eva02_base_patch16_clip_224", 48),
    "eva02_enormous": _timm("eva02_enormous_patch14_clip_224", 42),
    "pe": _timm("vit_pe_core_tiny_patch16_384", 48, pool="map"),
    "pe_without_class": _timm("vit_pe_core_gigantic_patch14_448", 42, pool="map"),
    "convnext": _timm("convnext_base", 64, pool="", proj="linear"),
    "convnext_mlp": _timm("convnext_xxlarge", 70, pool="", proj="mlp"),
    "mobile_base": _timm("vit_base_mci_224", 48),
    # As MobileCLIP2-L/14: a text tower without a causal mask that is pooled at the end of the text.
    "mobile_large": _timm("vit_large_patch14_clip_224", 42, no_causal_mask=True),
    "vitamin": _timm("vitamin_small_224", 64, pool="", proj="linear"),
    "vitamin_xlarge": _timm("vitamin_xlarge_256", 64, pool="", proj="linear"),
}  # fmt: skip
TEXT_CONFIGS = {
    "bert": {**BERT, "model_type": "bert", "type_vocab_size": 2, "pad_token_id": 0},
    "roberta": {**BERT, "model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
}  # fmt: skip
# How the timm towers are made small enough; their names stay those of timm's registry.
TIMM = {"embed_dim": 48, "depth": 2, "img_size": 32}
VITAMIN = {
    "embed_dim": 48, "depth": 2, "img_size": 64,
    "embed_cfg": SimpleNamespace(stem_width=8, embed_dim=(8, 12, 48), depths=(1, 2, 1)),
}  # fmt: skip
NARROW = {
    "eva01": {"embed_dim": 64, "depth": 2, "img_size": 42, "mlp_ratio": 1.5},
    "eva02": {"embed_dim": 96, "depth": 2, "img_size": 48},
    "eva02_enormous": {"embed_dim": 64, "depth": 2, "img_size": 42, "mlp_ratio": 1.5},
    "pe": {"embed_dim": 48, "depth": 2, "img_size": 48},
    "pe_without_class": {"embed_dim": 64, "depth": 2, "img_size": 42, "mlp_ratio": 1.5},
    "convnext": {"dims": (8, 12, 16, 20), "depths": (1, 2, 1, 2)},
    "convnext_mlp": {"dims": (8, 12, 16, 20), "depths": (2, 1, 1, 1)},
    "mobile_base": {"depth": 1, "img_size": 48},
    "mobile_large": {"embed_dim": 64, "depth": 2, "img_size": 42},
    "vitamin": VITAMIN,
    "vitamin_xlarge": VITAMIN,
}  # fmt: skip


def import_open_clip():
    """open_clip, where torchvision's compiled operators cannot load."""
    register = torch.library.register_fake

    def skip(name, *args, **kwargs):
        ours = not (isinstance(name, str) and name.startswith("torchvision::"))
        return register(name, *args, **kwargs) if ours else lambda function: function

    torch.library.register_fake = skip
    try:
        import torchvision  # noqa: F401
    finally:
        torch.library.register_fake = register
    import open_clip

    return open_clip


def ids_of(config: dict) -> np.ndarray:
    """Token ids that suit a text tower."""
    text = config["text_cfg"]
    if "hf_model_name" in text:
        padding = TEXT_CONFIGS[text["hf_model_name"]]["pad_token_id"]
        return ids_for(10, 3, 4, padding, 5, 59)
    end = text.get("eos_id", text["vocab_size"] - 1)
    return ids_for(text["context_length"], 3, end, 1 if "no_causal_mask" in text else 0, 8, text["vocab_size"] - 2)


def make(name: str) -> dict:
    """The golden record of a case."""
    open_clip, config = import_open_clip(), CASES[name]
    import timm

    # open_clip makes its towers by this function.
    timm.create_model = partial(timm.models.create_model, **NARROW.get(name, TIMM))
    arguments = json.loads(json.dumps(config))
    custom = arguments.pop("custom_text", False) or "hf_model_name" in arguments["text_cfg"]
    text_config = None
    with tempfile.TemporaryDirectory() as folder:
        if hf := arguments["text_cfg"].get("hf_model_name"):
            text_config = TEXT_CONFIGS[hf]
            Path(folder, "config.json").write_text(json.dumps(text_config))
            arguments["text_cfg"] |= {"hf_model_name": folder, "hf_model_pretrained": False}
        kind = open_clip.CustomTextCLIP if custom else open_clip.CLIP
        kind = open_clip.CoCa if "multimodal_cfg" in config else kind
        model = kind(**arguments).eval()
    shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
    model.load_state_dict({key: torch.from_numpy(value) for key, value in weights_for(shapes).items()})
    pixels, ids = pixels_for(config["vision_cfg"]["image_size"]), ids_of(config)
    with torch.no_grad():
        images = model.encode_image(torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), normalize=True)
        texts = model.encode_text(torch.from_numpy(ids.astype(np.int64)), normalize=True)
    vectors = {
        key: np.round(value.double().numpy(), 7).tolist() for key, value in (("images", images), ("texts", texts))
    }
    made_by = f"open_clip_torch {open_clip.__version__}, torch {torch.__version__.split('+')[0]}"
    return {
        "made_by": made_by, "model_cfg": config, "text_config": text_config, "shapes": shapes,
        "ids": ids.tolist(), **vectors,
    }  # fmt: skip


def main() -> int:
    wrong = 0
    for name in [name for name in sys.argv[1:] if name in CASES] or CASES:
        path, record = HERE / f"open_clip_{name}.json", make(name)
        if "--check" in sys.argv:
            kept = json.loads(path.read_text())
            differs = max(np.abs(np.subtract(kept[key], record[key])).max() for key in ("images", "texts"))
            print(f"{name}: {differs:.1e}")
            wrong += differs > 1e-5
        else:
            path.write_text(json.dumps(record) + "\n")
            print(f"{path.name}: {path.stat().st_size} bytes")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
