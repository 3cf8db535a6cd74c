"""BERT (arXiv 1810.04805), RoBERTa (1907.11692) and XLM-RoBERTa (1911.02116): text towers.

A folder of sentence-transformers adds a pooling and perhaps a dense module, which is our head (`sentence_folder`).
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import TEXT_FIELDS, library_defaults
from rococo_jax.checkpoints.families.exportable import ExportableFamily
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.names import NameTable, names
from rococo_jax.checkpoints.sentence_folder import read_dense, read_pooling, write_modules
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec

_CLASSES = {"bert": "BertConfig", "roberta": "RobertaConfig", "xlm-roberta": "XLMRobertaConfig"}
BERT_NAMES = names("""
    text.words                       {text}embeddings.word_embeddings.weight
    text.positions                   {text}embeddings.position_embeddings.weight
    text.types                       {text}embeddings.token_type_embeddings.weight
    text.norm                        {text}embeddings.LayerNorm                                    norm
    text.blocks.block.attention.qkv  {text}encoder.layer.{layer}.attention.self.{query,key,value}  linear
    text.blocks.block.attention.out  {text}encoder.layer.{layer}.attention.output.dense            linear
    text.blocks.block.norm1          {text}encoder.layer.{layer}.attention.output.LayerNorm        norm
    text.blocks.block.mlp.up         {text}encoder.layer.{layer}.intermediate.dense                linear
    text.blocks.block.mlp.down       {text}encoder.layer.{layer}.output.dense                      linear
    text.blocks.block.norm2          {text}encoder.layer.{layer}.output.LayerNorm                  norm
""")


class Bert(ExportableFamily):
    """The text tower of BERT.

    Attributes:
        unused_positions: the first rows of its table of positions, which no token has; RoBERTa counts from the
            padding id + 1.
        open_clip_poolings: our poolings by the names that open_clip gives them.
    """

    name = "bert"
    model_types = ("bert",)
    names = BERT_NAMES
    # BERT's first checkpoints call the parameters of a norm gamma and beta.
    aliases = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
    prefixes = ("", "bert.")
    text_fields = TEXT_FIELDS + fields("""
        token_types  type_vocab_size      whole
        -            is_decoder           false
        -            add_cross_attention  false
    """)
    fixed_text: ClassVar = {"attention": "masked", "norm_after_blocks": True}
    poolings = ("cls", "mean")
    end_token = "sep_token"
    unused_positions = 0
    open_clip_poolings: ClassVar = {"mean_pooler": "mean", "cls_last_hidden_state_pooler": "cls"}

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        return ModelSpec(vision=None, text=self.text_tower(Section(path, "", config, {}), pooling))

    def text_tower(self, section: Section, pooling: str) -> TextSpec:
        """Return the text tower of a `config.json`. Raises InputError for a value that it cannot follow."""
        defaults = library_defaults(_CLASSES[section.values["model_type"]])
        section = Section(section.source, section.name, section.values, defaults)
        # Not a field in every release of `transformers`.
        if section.values.get("position_embedding_type") not in ("absolute", None):
            raise section.refuse("position_embedding_type", "absolute")
        self.check_padding(section)
        tower = self.text_spec(section, pooling=pooling)
        return dataclasses.replace(tower, context_length=tower.context_length - self.unused_positions)

    def check_padding(self, section: Section) -> None:
        """Raise InputError for a padding id that changes how positions are counted."""

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        # The head is a dense module in a folder of its own.
        return super().table(dataclasses.replace(spec, text_head=HeadSpec()), vision_prefix, text_prefix)

    def read(
        self, folder: Path, tensors: Tensors, config: Mapping[str, Any], pooling: str | None
    ) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        spec, parameters = super().read(folder, tensors, config, pooling or read_pooling(folder))
        head, dense = read_dense(folder, spec.text.features)
        return dataclasses.replace(spec, text_head=head), {**parameters, **dense}

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.attention == "masked" and tower.norm_after_blocks

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        return {"model_type": "bert", "architectures": ["BertModel"], **self.text_config(spec.text)}

    def spec_of_export(self, config: Mapping[str, Any], spec: ModelSpec, path: Path) -> ModelSpec:
        pooling = spec.text.pooling if spec.text.pooling in self.poolings else None
        back = self.spec_from_config(config, path, (), pooling)
        is_dense = (spec.text_head.kind, spec.text_head.hidden) == ("linear", None)
        return dataclasses.replace(back, text_head=spec.text_head) if is_dense else back

    def write_more(self, folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
        write_modules(folder, spec, parameters)


class Roberta(Bert):
    """Positions count from after the padding id, 1; the special tokens are those of `tokenizer.json`."""

    name = "roberta"
    model_types = ("roberta", "xlm-roberta")
    names = BERT_NAMES + names("text.positions  {text}embeddings.position_embeddings.weight  skip_2_rows")
    prefixes = ("", "roberta.")
    unused_positions = 2

    def check_padding(self, section: Section) -> None:
        last_unused = self.unused_positions - 1
        if section.values["pad_token_id"] != last_unused:
            raise section.refuse("pad_token_id", f"{last_unused}, after which RoBERTa counts its positions")

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        if "text_config" in config:  # the tower's own limit
            return super().read_tokenizer(source, config)
        section = Section(source, "", config, library_defaults(_CLASSES[config["model_type"]]))
        length = section.integer("max_position_embeddings") - self.unused_positions
        return super().read_tokenizer(source, {**config, "text_config": {"max_position_embeddings": length}})


BERT, ROBERTA = Bert(), Roberta()
