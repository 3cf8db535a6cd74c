"""NLLB-200's encoder (arXiv 2207.04672) as a text tower, as open_clip's NLLB-CLIP has it (2309.01859).

    ids -> sqrt(width) tokens + sines and cosines of positions -> blocks, norms before them -> norm -> first token

The first token is the language, English. Positions count from 2, after the padding id, and are in no checkpoint.
Source: `transformers/models/m2m_100`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tokenizers.processors import TemplateProcessing

from rococo_jax.checkpoints.families.base import Section, library_defaults
from rococo_jax.checkpoints.families.bert import Roberta
from rococo_jax.checkpoints.tensors import Row, Transform, block_rows, norm_rows
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import TextSpec

_LANGUAGE, _BASE = "eng_Latn", 10000.0


class Nllb(Roberta):
    """The text tower alone: translation models are not read."""

    name = "nllb"
    model_types = ("m2m_100",)
    open_clip_poolings: ClassVar = {"cls_pooler": "cls", "cls_last_hidden_state_pooler": "cls", "mean_pooler": "mean"}

    def text_spec(self, section: Section, pooling: str) -> TextSpec:
        section = Section(section.source, section.name, section.values, library_defaults("M2M100Config"))
        if not section.flag("scale_embedding"):
            raise section.refuse("scale_embedding", "true")
        self.check_padding(section)
        section.values["hidden_act"] = section.values["activation_function"]
        return TextSpec(
            vocabulary_size=section.integer("vocab_size"),
            context_length=section.integer("max_position_embeddings"),
            width=section.integer("d_model"),
            layers=section.integer("encoder_layers"),
            heads=section.integer("encoder_attention_heads"),
            mlp_width=section.integer("encoder_ffn_dim"),
            activation=section.activation(),
            norm_eps=1e-5,
            attention="masked",
            norm_after_blocks=False,
            pooling=pooling,
        )

    def text_rows(self, prefix: str, spec: TextSpec) -> list[Row]:
        positions = sinusoids(self.unused_positions, spec.context_length, spec.width)
        scale = np.float32(spec.width**0.5)
        scaled = Transform(lambda theirs: theirs[0] * scale, lambda ours, _: [ours / scale])
        return [
            Row("text.words", f"{prefix}embed_tokens.weight", scaled),
            Row("text.positions", (), Transform(lambda _: positions, lambda *_: [])),
            *block_rows(
                "text", f"{prefix}layers.{{layer}}", norms=("self_attn_layer_norm", "final_layer_norm"),
                qkv=[f"self_attn.{name}_proj" for name in "qkv"], out="self_attn.out_proj", mlp=("fc1", "fc2"),
            ),
            *norm_rows("text.norm", f"{prefix}layer_norm"),
        ]  # fmt: skip

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        """As `Roberta`, with the language before a text: the file may have it after the end, where NLLB once had it."""
        tokenizer = super().read_tokenizer(source, config)
        if (language := tokenizer.rust.token_to_id(_LANGUAGE)) is None:
            raise InputError(source, "tokenizer", f"no {_LANGUAGE}", "the languages of NLLB")
        ends = [(_LANGUAGE, language), ("</s>", tokenizer.spec.eos_id)]
        tokenizer.rust.post_processor = TemplateProcessing(single=f"{_LANGUAGE} $A </s>", special_tokens=ends)
        return tokenizer


def sinusoids(first: int, count: int, width: int) -> np.ndarray:
    """Positions (count, width) from number `first` on, float32: sines of all frequencies, then cosines."""
    half = width // 2
    steps = np.exp(np.arange(half, dtype=np.float32) * np.float32(-np.log(_BASE) / (half - 1)))
    angles = np.arange(first, first + count, dtype=np.float32)[:, None] * steps
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((count, width % 2), np.float32)], axis=1)


NLLB = Nllb()
