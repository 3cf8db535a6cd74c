"""Tiny random models in the folders of other libraries, as their own `save_pretrained` writes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

torch = pytest.importorskip("torch")

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] <image> Yes no a dog cat the mat on is".split()
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**SMALL, "image_size": 32, "patch_size": 16}
_TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def word_tokenizer(folder: Path, words: list[str] = WORDS) -> Any:
    """A BERT tokenizer of some words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=24, do_lower_case=False)
    (folder / "vocab.txt").unlink()
    return tokenizer


def byte_pair_tokenizer() -> Any:
    """A tokenizer with merges, a normaliser and an added token."""
    import tokenizers

    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    merges = [("d", "o"), ("do", "g"), ("c", "a"), ("ca", "t"), ("t", "h"), ("th", "e")]
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *letters, *map("".join, merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, unk_token="<unk>"))
    rust.normalizer = tokenizers.normalizers.Lowercase()
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    rust.enable_truncation(16)
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, model_max_length=16, **special)
    tokenizer.add_tokens(["zebra"])
    return tokenizer


def clip(folder: Path) -> Path:
    """A CLIP with byte pairs."""
    text = {**SMALL, "vocab_size": 64, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8)
    byte_pair_tokenizer().save_pretrained(folder)
    processor = {
        "processor_class": "CLIPProcessor", "image_processor_type": "CLIPImageProcessor", "do_resize": True,
        "size": {"shortest_edge": 32}, "resample": 3, "do_center_crop": True, "do_rescale": True,
        "crop_size": {"height": 32, "width": 32}, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25], "do_convert_rgb": True,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return _saved(transformers.CLIPModel, config, folder)


def blip(folder: Path) -> Path:
    """A BLIP with a matching head."""
    text = {**SMALL, "vocab_size": len(WORDS), "encoder_hidden_size": 16}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=8)
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    transformers.BlipProcessor(images, word_tokenizer(folder)).save_pretrained(folder)
    return _saved(transformers.BlipForImageTextRetrieval, config, folder)


def llava(folder: Path) -> Path:
    """A LLaVA, whose processor has a chat template."""
    text = transformers.LlamaConfig(**SMALL, vocab_size=len(WORDS), max_position_embeddings=64, pad_token_id=0)
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=5)
    tokenizer = word_tokenizer(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    choices = {"patch_size": 16, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = transformers.LlavaProcessor(images, tokenizer, chat_template=_TEMPLATE, **choices)
    processor.save_pretrained(folder)
    return _saved(transformers.LlavaForConditionalGeneration, config, folder)


def bert(folder: Path, architecture: str = "BertModel") -> Path:
    """A BERT."""
    folder.mkdir(parents=True, exist_ok=True)
    config = transformers.BertConfig(**SMALL, vocab_size=len(WORDS), max_position_embeddings=24, num_labels=1)
    word_tokenizer(folder).save_pretrained(folder)
    return _saved(getattr(transformers, architecture), config, folder)


def sentence_model(folder: Path) -> Path:
    """A model of sentence-transformers: BERT, pooling, a linear layer, and prompts."""
    import sentence_transformers
    from sentence_transformers.sentence_transformer import modules

    towers = bert(folder / "bert")
    transformer = modules.Transformer(str(towers))
    torch.manual_seed(0)
    parts = [transformer, modules.Pooling(16, "mean"), modules.Dense(16, 8), modules.Normalize()]
    prompts = {"query": "find: ", "document": "text: "}
    model = sentence_transformers.SentenceTransformer(modules=parts, prompts=prompts, default_prompt_name="query")
    model.save_pretrained(str(folder / "model"))
    shutil.rmtree(towers)
    return folder / "model"


def cross_encoder(folder: Path) -> Path:
    """A reranker of sentence-transformers."""
    import sentence_transformers

    towers = bert(folder / "bert", "BertForSequenceClassification")
    model = sentence_transformers.CrossEncoder(str(towers), prompts={"find": "is "}, activation_fn=torch.nn.Sigmoid())
    model.save_pretrained(str(folder / "model"))
    shutil.rmtree(towers)
    return folder / "model"


def _saved(kind: Any, config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    return folder
