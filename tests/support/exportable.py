"""A tiny CLIP of ours that the Hugging Face form can express, and its folder for `transformers`."""

import dataclasses
from pathlib import Path

import tokenizers
from flax import nnx

from rococo_jax.checkpoints import export_huggingface
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.encoders import Encoder
from rococo_jax.models import DualEncoder
from tests.support.tiny import WORDS, tiny_spec

TOKENS = ["<pad>", "<unk>", *WORDS, "<s>", "</s>"]
END = len(TOKENS) - 1


def exportable_encoder() -> Encoder:
    """A tiny encoder that the Hugging Face form of CLIP can express: it pools at the highest id, which ends a text."""
    rust = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({token: place for place, token in enumerate(TOKENS)}, "<unk>")
    )
    rust.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", END - 1), ("</s>", END)]
    )
    spec = tiny_spec()
    text = dataclasses.replace(spec.text, pooling="highest_id", eos_id=None, vocabulary_size=len(TOKENS))
    return Encoder(
        DualEncoder(dataclasses.replace(spec, text=text), rngs=nnx.Rngs(0)),
        Preprocessing(shortest_edge=32, crop_size=(32, 32), mean=(0.5,) * 3, std=(0.25,) * 3),
        Tokenizer(rust, TokenizerSpec(family="clip", cleaning="none", context_length=24, pad_id=0, eos_id=END)),
        name="tiny",
    )


def export_for_transformers(encoder: Encoder, folder: Path) -> Path:
    """The folder of the encoder, which `transformers` reads."""
    export_huggingface(encoder, folder)
    return folder
