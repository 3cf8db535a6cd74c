"""Every key that a source library knows is followed, refused unless it is off, or known to have no effect.

The tests walk through the library's own configuration classes. A key that no table names has to change what is read,
or to be refused, when it is changed; so a key that nobody has looked at, of this release or a later one, fails.
"""

import inspect
import json
import shutil

import pytest
import transformers

from rococo_jax.checkpoints import convert
from rococo_jax.checkpoints.families import spec_from_config
from rococo_jax.checkpoints.families.base import library_defaults
from rococo_jax.checkpoints.formats.open_clip import hf_config, preprocessing_of_open_clip
from rococo_jax.checkpoints.formats.open_clip_config import spec_from_open_clip
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.errors import InputError
from tests.data.test_tokenizers import sentences, write_bert, write_clip
from tests.support.open_clip_files import golden
from tests.support.reference_models import clip, saved
from tests.support.refusals import refused


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value * 2 or 1
    if isinstance(value, list | tuple):
        return [*map(changed, value)] or [1]
    if isinstance(value, dict):
        return {key: changed(each) for key, each in value.items()} or {"other": 1}
    return {"gelu": "relu", "mean": "max"}.get(value, "gelu")


def outcome(read, *arguments):
    """Return the value that is read, or `refused`."""
    try:
        return read(*arguments)
    except InputError:
        return "refused"


# `config.json` of transformers

TRAINING = {
    "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "activation_dropout",
    "drop_path_rate", "drop_connect_rate", "encoder_layerdrop", "classifier_dropout", "label_smoothing",
    "batch_norm_momentum", "initializer_range", "initializer_factor", "init_std", "layerscale_value", "use_mask_token",
    "logit_scale_init_value", "temperature_init_value",
}  # fmt: skip
# What is returned and how it is computed; names of labels; decoders; towers as the backbones of other models.
OTHER_USES = {
    "transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype", "chunk_size_feed_forward",
    "is_encoder_decoder", "id2label", "label2id", "problem_type", "use_cache", "tie_word_embeddings", "_out_features",
    "_out_indices", "apply_layernorm", "reshape_hidden_states",
}  # fmt: skip
# Ids that no text is pooled at: those of tokens are the tokenizer's, and padding is masked, or comes after the end.
IDS, POSITIONS_COUNT_FROM = {"pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id"}, {"pad_token_id"}
# Where a class stands in `config.json`: the model's type, and the part; and what has no effect there beside `TRAINING`
# and `OTHER_USES`.
PAIR = {"projection_dim"}  # of towers of a pair: that of the whole counts
PLACES = {
    "CLIPConfig": ("clip", "", set()), "CLIPVisionConfig": ("clip", "vision_config", PAIR),
    "CLIPTextConfig": ("clip", "text_config", PAIR | {"pad_token_id", "bos_token_id"}),
    "SiglipConfig": ("siglip", "", set()), "SiglipVisionConfig": ("siglip", "vision_config", set()),
    "SiglipTextConfig": ("siglip", "text_config", IDS),
    "Siglip2Config": ("siglip2", "", set()), "Siglip2VisionConfig": ("siglip2", "vision_config", set()),
    "Siglip2TextConfig": ("siglip2", "text_config", IDS),
    "MetaClip2Config": ("metaclip_2", "", set()), "MetaClip2VisionConfig": ("metaclip_2", "vision_config", PAIR),
    "MetaClip2TextConfig": ("metaclip_2", "text_config", PAIR | {"pad_token_id", "bos_token_id"}),
    "Dinov2Config": ("dinov2", "", set()), "Dinov2WithRegistersConfig": ("dinov2_with_registers", "", set()),
    "DINOv3ViTConfig": ("dinov3_vit", "", {"pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"}),  # in training
    # The epsilon is added to a number of tokens, in float32: one that changes the sum is refused.
    "Tipsv2Config": ("tipsv2", "", set()), "Tipsv2VisionConfig": ("tipsv2", "vision_config", set()),
    "Tipsv2TextConfig": ("tipsv2", "text_config", IDS | {"pooling_epsilon"}),
    "BertConfig": ("bert", "", IDS),
    "RobertaConfig": ("roberta", "", IDS - POSITIONS_COUNT_FROM),
    "XLMRobertaConfig": ("xlm-roberta", "", IDS - POSITIONS_COUNT_FROM),
    # Widths of what the towers of BLIP attend to are those of its tensors; it calls itself no decoder.
    "BlipConfig": ("blip", "", PAIR), "BlipVisionConfig": ("blip", "vision_config", PAIR),
    "BlipTextConfig": ("blip", "text_config", PAIR | IDS - {"bos_token_id"} | {"encoder_hidden_size", "is_decoder"}),
}  # fmt: skip
PARTS = {"vision_config", "text_config"}
BLIP = {"text_proj.weight", "vision_proj.weight", "itm_head.weight"}
BLIP |= {"text_encoder.encoder.layer.0.crossattention.self.query.weight"}


def read_config(config, path):
    return spec_from_config(config, path, BLIP if config["model_type"] == "blip" else ())


@pytest.mark.parametrize("name", PLACES)
def test_every_key_of_a_configuration_is_followed_or_refused(name, tmp_path):
    kind, part, no_effect = PLACES[name]
    defaults, ignored = library_defaults(name), set()
    for key, value in defaults.items():
        base = {"num_attention_heads": 2, **({"projection_size": 768} if key == "hidden_size" else {})} if part else {}
        other = changed(base.get(key, value))
        read = [
            outcome(read_config, {"model_type": kind, **({part: section} if part else section)}, tmp_path)
            for section in (base, {**base, key: other})
        ]
        assert read[0] != "refused", (name, key)
        ignored |= {key} if read[0] == read[1] else set()
    assert ignored - PARTS == (TRAINING | OTHER_USES | no_effect) & defaults.keys() < defaults.keys()


# Image processors of transformers

PROCESSORS = ("CLIP", "Siglip", "Siglip2", "Bit", "ViT")
# What sizes an image elsewhere, and has no effect where the number of patches does.
NO_SIZE = {"Siglip2": {"size", "default_to_square", "crop_size", "do_center_crop"}}
# Whereto and in which form the library gives the pixels; the conversion to RGB, which every picture gets here.
FORM_OF_PIXELS = {"data_format", "input_data_format", "device", "return_tensors", "disable_grouping", "do_convert_rgb"}
FORM_OF_PIXELS |= {"image_seq_length"}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_every_key_of_an_image_processor_is_followed_or_refused(kind):
    processor = getattr(transformers, f"{kind}ImageProcessor")
    base = {"image_processor_type": f"{kind}ImageProcessor", "size": {"height": 32, "width": 32}}
    base |= {"do_center_crop": True, "crop_size": {"height": 24, "width": 24}, "do_normalize": True}
    ignored = set()
    for key in processor.valid_kwargs.__annotations__:
        # A size for padding counts where images are padded.
        more = {"do_pad": True} if key == "pad_size" else {}
        value = {"pad_size": {"height": 16, "width": 16}, "resample": 0}.get(key)
        value = changed(base.get(key, getattr(processor, key, None))) if value is None else value
        read = [outcome(Preprocessing.from_huggingface, {**base, **each}) for each in ({}, {**more, key: value})]
        assert read[0] != "refused"
        ignored |= {key} if read[0] == read[1] else set()
    ignored -= NO_SIZE.get(kind, set())
    assert ignored == FORM_OF_PIXELS - ({"image_seq_length"} - processor.valid_kwargs.__annotations__.keys())


def test_the_same_one_of_two_processor_files_is_read_as_by_transformers(tmp_path):
    folder = saved(clip(), tmp_path / "clip")
    crop = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40}, "crop_size": 30}
    files = {"preprocessor_config.json": crop, "processor_config.json": {"processor_class": "CLIPProcessor"}}
    nested = {"processor_class": "CLIPProcessor", "image_processor": {**crop, "size": {"shortest_edge": 50}}}
    for changes, edge in (({}, 40), ({"processor_config.json": nested}, 50)):
        for name, value in {**files, **changes}.items():
            (folder / name).write_text(json.dumps(value))
        theirs = transformers.CLIPImageProcessor.from_pretrained(folder).size["shortest_edge"]
        assert convert(folder).preprocessing.shortest_edge == theirs == edge


# `tokenizer_config.json` beside the files of a vocabulary

TEXTS = ["A dog on the Grass.", "Zwei Hünde  spielen, schön!", "a [SEP] b <|endoftext|> c", "猫 dog"]
TOKENIZERS = {"clip": "CLIPTokenizer", "bert": "BertTokenizer"}
SETTINGS = {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False, "model_max_length": 6}
SETTINGS |= {"padding_side": "left", "truncation_side": "left", "split_special_tokens": True, "errors": "strict"}
MARKS = {"pad_token": "[PAD]", "sep_token": "[SEP]"}
SETTINGS |= {"add_prefix_space": True, "clean_up_tokenization_spaces": True, "extra_special_tokens": ["猫"]}


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    """A folder with the vocabulary alone, by kind of tokenizer."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in TOKENIZERS}
    for kind, write in (("clip", write_clip), ("bert", write_bert)):
        write(folders[kind], sentences(200))
    return folders


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_setting_of_a_vocabulary_is_followed_or_refused(kind, tmp_path, vocabularies):
    tokenizer = getattr(transformers, TOKENIZERS[kind])
    known = inspect.signature(tokenizer.__init__).parameters.keys() - {"self", "kwargs", "vocab", "merges"}
    tokens = {key: "!" for key in known if key.endswith("_token")}
    assert known <= {**SETTINGS, **tokens}.keys(), "a setting that nobody has tried"
    for number, (key, value) in enumerate({**SETTINGS, **tokens}.items()):
        folder = shutil.copytree(vocabularies[kind], tmp_path / str(number))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": TOKENIZERS[kind], key: value}))
        longest = value if key == "model_max_length" else 77
        theirs = tokenizer.from_pretrained(folder)(TEXTS, truncation=True, max_length=longest)
        ours = outcome(lambda folder: read_huggingface_tokenizer(folder, {"model_type": kind}).encode(TEXTS), folder)
        if key in ("padding_side", "truncation_side", "split_special_tokens"):
            assert ours == "refused", key
        else:
            assert ours == theirs["input_ids"], key


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("named", [None, "BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"do_lower_case": True}])
def test_the_named_class_of_a_tokenizer_is_used_as_by_transformers(where, named, settings, vocabularies, tmp_path):
    folder = shutil.copytree(vocabularies["bert"], tmp_path / "bert")
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    files = {"config.json": {"model_type": "bert"}, "tokenizer_config.json": {**MARKS, **settings}}
    files[where] |= {"tokenizer_class": named} if named else {}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    assert read_huggingface_tokenizer(folder, files["config.json"]).encode(TEXTS) == theirs


# open_clip 3.3: `CLIPVisionCfg`, `CLIPTextCfg`, `PreprocessCfg`, the arguments of `CLIP` and `CoCa`; with what a key
# needs beside it to count. Their values here are not the defaults.

OPEN_CLIP = {
    "model_cfg": {
        "embed_dim": 48, "quick_gelu": True, "init_logit_scale": 1.0, "init_logit_bias": -10.0, "output_dict": True,
        "nonscalar_logit_scale": True, "custom_text": True, "multimodal_cfg": {"width": 64},
    },
    "vision_cfg": {
        "layers": 3, "width": 128, "head_width": 16, "mlp_ratio": 2.0, "patch_size": 32, "image_size": 128,
        "ls_init_value": 0.1, "patch_dropout": 0.5, "attentional_pool": True, "attn_pooler_queries": 4,
        "attn_pooler_heads": 4, "no_ln_pre": True, "pos_embed_type": "sin_cos_2d", "final_ln_after_pool": True,
        "pool_type": "avg", "output_tokens": True, "act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6},
        "block_type": "custom", "qk_norm": True, "scaled_cosine_attn": True, "scale_heads": True,
        "scale_attn_inner": True, "scale_attn": True, "scale_fc": True, "timm_model_name": "unknown",
        "timm_model_pretrained": True, "timm_pool": "abs_attn", "timm_proj": "mlp", "timm_proj_bias": True,
        "timm_drop": 0.5, "timm_drop_path": 0.5,
    },
    "text_cfg": {
        "context_length": 20, "vocab_size": 70, "hf_tokenizer_name": "n", "tokenizer_mode": "clips",
        "tokenizer_kwargs": {"clean": "lower"}, "width": 128, "heads": 2, "layers": 3, "mlp_ratio": 2.0,
        "ls_init_value": 0.1, "embed_cls": True, "pad_id": 3, "eos_id": 5, "no_causal_mask": True,
        "final_ln_after_pool": True, "pool_type": "eos", "proj_bias": True, "proj_type": "none", "output_tokens": True,
        "act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6}, "block_type": "custom", "qk_norm": True,
        "scaled_cosine_attn": True, "scale_heads": True, "scale_attn_inner": True, "scale_attn": True,
        "scale_fc": True, "hf_model_name": "n", "hf_model_pretrained": True, "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_pooler",
    },
    "preprocess_cfg": {
        "size": 50, "mode": "L", "mean": [0.1, 0.2, 0.3], "std": 0.5, "interpolation": "bilinear",
        "resize_mode": "squash", "fill_color": 7,
    },
}  # fmt: skip
BESIDE = {
    "attn_pooler_heads": {"attentional_pool": True}, "attn_pooler_queries": {"attentional_pool": True},
    "eos_id": {"pool_type": "eos"}, "pad_id": {"embed_cls": True},
}  # fmt: skip
NO_EFFECT_IN_OPEN_CLIP = {
    # Tensors tell the shape of the scale, whether the text tower is apart, and the number of queries; the activation
    # is `activation_of_open_clip`'s, and the tokenizer's keys are its reader's.
    "model_cfg": {"init_logit_scale", "output_dict", "nonscalar_logit_scale", "custom_text", "multimodal_cfg"},
    "vision_cfg": {
        "patch_dropout", "attn_pooler_queries", "pos_embed_type", "output_tokens", "timm_model_pretrained", "timm_drop",
        "timm_drop_path",
    },
    "text_cfg": {"output_tokens", "tokenizer_kwargs", "hf_tokenizer_name", "hf_model_pretrained"},
    "preprocess_cfg": {"size", "fill_color"},  # the tower's size wins; the colour is that of `resize_mode` longest
}  # fmt: skip


def read_open_clip(part, values, path, case="vit_gelu"):
    """Spec and preprocessing of a golden case whose configuration has other values in one part."""
    record = golden(case)
    config = {"model_cfg": record["model_cfg"], "preprocess_cfg": {}}
    model = config["model_cfg"]
    hf_model = model["text_cfg"].get("hf_model_name")
    (config if part in config else model)[part] |= values
    if model["text_cfg"].get("hf_model_name") not in (None, hf_model):
        hf_config(model["text_cfg"], path)
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    tensors = Tensors(path, {name: (tuple(shape), "F32") for name, shape in record["shapes"].items()}, dict)
    spec = spec_from_open_clip(model, path, tensors, lambda: activation, record["text_config"])
    return spec, preprocessing_of_open_clip(config["preprocess_cfg"], path, spec)


@pytest.mark.parametrize("part", OPEN_CLIP)
def test_every_key_of_open_clip_is_followed_or_refused(part, tmp_path):
    ignored = set()
    for key, value in OPEN_CLIP[part].items():
        # Towers of timm, of transformers, or open_clip's own.
        case = "convnext" if key.startswith("timm_") else "roberta" if key.startswith("hf_") else "vit_gelu"
        beside = BESIDE.get(key, {})
        read = [
            outcome(read_open_clip, part, {**beside, **changes}, tmp_path / "config", case)
            for changes in ({}, {key: value})
        ]
        assert read[0] != "refused", key
        ignored |= {key} if read[0] == read[1] else set()
    assert ignored == NO_EFFECT_IN_OPEN_CLIP[part]


@pytest.mark.parametrize("part", ["model_cfg", "vision_cfg", "text_cfg"])
def test_a_key_that_is_unknown_to_open_clip_is_refused(part, tmp_path):
    refused(f"{part}.newer: found 1", read_open_clip, part, {"newer": 1}, tmp_path)
