"""BERT (arXiv 1810.04805), RoBERTa (1907.11692) and XLM-RoBERTa (1911.02116), and what sentence-transformers adds.

A sentence-transformers folder describes how tokens become one vector: `modules.json` names a pooling module and perhaps
a dense module after it, an affine map that is our head. Source: `sentence_transformers/models/{Pooling,Dense}.py`.

NLLB-200's encoder (2207.04672) is a text tower too, as open_clip's NLLB-CLIP has it (2309.01859):

    ids -> sqrt(width) tokens + sines and cosines of positions -> blocks, norms before them -> norm -> first token

The first token is the language, English. Positions count from 2, after the padding id, and are in no checkpoint.
Source: `transformers/models/m2m_100`.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import IGNORED, Section, library_defaults
from rococo_jax.checkpoints.families.exportable import ExportableFamily, text_config
from rococo_jax.checkpoints.sentence_folder import find_model_path
from rococo_jax.checkpoints.tensors import (
    NameTable,
    Row,
    Tensors,
    Transform,
    block_rows,
    norm_rows,
    without_first,
    write_safetensors,
)
from rococo_jax.checkpoints.weight_files import open_weights
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec
from rococo_jax.models.text import sinusoids
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import read_json, read_json_object, write_json

_PROMPTS = "config_sentence_transformers.json"
SENTENCE_FILES = (_PROMPTS, "modules.json", "*_Pooling/config.json", "*_Dense/config.json")
SENTENCE_FILES += ("*_Dense/model.safetensors", "*_Dense/pytorch_model.bin")
_CLASSES = {"bert": "BertConfig", "roberta": "RobertaConfig", "xlm-roberta": "XLMRobertaConfig"}
# BERT's first checkpoints call the parameters of a norm gamma and beta.
ALIASES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
_POOLINGS = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
_IDENTITY = "torch.nn.modules.linear.Identity"


class Bert(ExportableFamily):
    """Attributes beside those of a family:

    unused_positions: the first rows of its table of positions that no token has.
    open_clip_poolings: our poolings by the names that open_clip gives them.
    """

    name = "bert"
    model_types = ("bert",)
    prefixes = ("", "bert.")
    poolings = ("cls", "mean")
    end_token = "sep_token"
    unused_positions = 0
    open_clip_poolings: ClassVar = {"mean_pooler": "mean", "cls_last_hidden_state_pooler": "cls"}

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        return ModelSpec(vision=None, text=self.text_spec(Section(path, "", config, {}), pooling))

    def text_spec(self, section: Section, pooling: str) -> TextSpec:
        """The text tower of a `config.json` or a part of one. Raises InputError for a value that it cannot follow."""
        defaults = library_defaults(_CLASSES[section.values["model_type"]])
        # Fields that not every release of `transformers` has.
        older = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
        section = Section(section.source, section.name, section.values, {**older, **defaults})
        if section.values["position_embedding_type"] not in ("absolute", None):
            raise section.refuse("position_embedding_type", "absolute")
        for key in ("is_decoder", "add_cross_attention"):
            if section.flag(key):
                raise section.refuse(key, "false")
        self.check_padding(section)
        sizes = section.text_sizes()
        sizes["context_length"] -= self.unused_positions
        return TextSpec(
            attention="masked",
            norm_after_blocks=True,
            pooling=pooling,
            token_types=section.integer("type_vocab_size"),
            **sizes,
        )

    def check_padding(self, section: Section) -> None:
        """Refuse a padding id under which the positions would be counted otherwise."""

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        return NameTable(tuple(self.text_rows(text_prefix, spec.text)), IGNORED, ALIASES)

    def text_rows(self, prefix: str, spec: TextSpec) -> list[Row]:
        """The tensors of the text tower."""
        layers = {
            "norms": ("attention.output.LayerNorm", "output.LayerNorm"),
            "qkv": [f"attention.self.{name}" for name in ("query", "key", "value")],
            "out": "attention.output.dense",
            "mlp": ("intermediate.dense", "output.dense"),
        }
        positions = f"{prefix}embeddings.position_embeddings.weight"
        return [
            Row("text.words", f"{prefix}embeddings.word_embeddings.weight"),
            Row("text.positions", positions, without_first(self.unused_positions)),
            *([Row("text.types", f"{prefix}embeddings.token_type_embeddings.weight")] if spec.token_types else []),
            *norm_rows("text.norm", f"{prefix}embeddings.LayerNorm"),
            *block_rows("text", f"{prefix}encoder.layer.{{layer}}", **layers),
        ]

    def read(
        self, folder: Path, tensors: Tensors, config: Mapping[str, Any], pooling: str | None
    ) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        spec, parameters = super().read(folder, tensors, config, pooling or sentence_pooling(folder))
        head, dense = _read_dense(folder, spec.text)
        return dataclasses.replace(spec, text_head=head), {**parameters, **dense}

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.attention == "masked" and tower.norm_after_blocks

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        types = {"type_vocab_size": spec.text.token_types}
        return {"model_type": "bert", "architectures": ["BertModel"], **text_config(spec.text), **types}

    def spec_of_export(self, config: Mapping[str, Any], spec: ModelSpec, path: Path) -> ModelSpec:
        pooling = spec.text.pooling if spec.text.pooling in self.poolings else None
        back = self.spec_from_config(config, path, (), pooling)
        dense = (spec.text_head.kind, spec.text_head.hidden) == ("linear", None)
        return dataclasses.replace(back, text_head=spec.text_head) if dense else back

    def write_more(self, folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
        kinds = ["Transformer", "Pooling", *(["Dense"] if spec.text_head.kind == "linear" else []), "Normalize"]
        paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ]
        if "Dense" in kinds:
            _write_dense(folder / paths[kinds.index("Dense")], spec, parameters)
        write_json(folder / "modules.json", modules)
        pooling = {"word_embedding_dimension": spec.text.width}
        for mode, name in (("cls", "cls_token"), ("mean", "mean_tokens")):
            pooling[f"pooling_mode_{name}"] = spec.text.pooling == mode
        write_json(folder / "1_Pooling" / "config.json", pooling)


class Roberta(Bert):
    """Positions are counted from after the padding id, 1; the special tokens are those of `tokenizer.json`."""

    name = "roberta"
    model_types = ("roberta", "xlm-roberta")
    prefixes = ("", "roberta.")
    unused_positions = 2

    def check_padding(self, section: Section) -> None:
        last = self.unused_positions - 1
        if section.values["pad_token_id"] != last:
            raise section.refuse("pad_token_id", f"{last}, after which RoBERTa counts its positions")

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        if "text_config" in config:  # the tower's own limit
            return super().read_tokenizer(source, config)
        section = Section(source, "", config, library_defaults(_CLASSES[config["model_type"]]))
        length = section.integer("max_position_embeddings") - self.unused_positions
        return super().read_tokenizer(source, {**config, "text_config": {"max_position_embeddings": length}})


BERT, ROBERTA = Bert(), Roberta()


def sentence_pooling(folder: Path) -> str | None:
    """The pooling of a sentence-transformers folder: `cls`, `mean`, or None without such a module.

    Raises InputError where it pools in another way, or adds a module that changes the vectors.
    """
    path = _pipeline_folder(folder) / _module_paths(folder).get("Pooling", "1_Pooling") / "config.json"
    if not path.is_file():
        return None
    config, flag = read_json_object(path, "a pooling configuration"), "pooling_mode_"
    named, flags = config.get("pooling_mode"), [k for k, v in config.items() if k.startswith(flag) and v is True]
    # `pooling_mode` of newer releases, else the flags that are true
    modes = [named] if isinstance(named, str) else [key.removeprefix(flag) for key in flags]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise InputError(path, "pooling", ", ".join(modes) or "none", "either cls or mean")
    return _POOLINGS[modes[0]]


def _pipeline_folder(folder: Path) -> Path:
    """Return the folder above where its `modules.json` names this one as the model, else the folder itself."""
    return folder.parent if find_model_path(folder.parent) == folder.name else folder


def _module_paths(folder: Path) -> dict[str, str]:
    """The place of each module in the folder, by its kind; empty without `modules.json`."""
    folder = _pipeline_folder(folder)
    prompts = read_json_object(folder / _PROMPTS, "prompts") if (folder / _PROMPTS).is_file() else {}
    if (name := prompts.get("default_prompt_name")) is not None:
        raise InputError(folder / _PROMPTS, "default_prompt_name", repr(name), "null: texts are read without a prompt")
    path = folder / "modules.json"
    if not path.is_file():
        return {}
    modules = read_json(path, "the modules of a sentence-transformers model")
    if not is_list_of(dict, modules):
        raise InputError(path, "modules", type(modules).__name__, "a list of objects")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    other = [kind for kind in kinds if kind not in _MODULES or kinds.count(kind) > 1]
    places = {kind: str(module.get("path", "")) for kind, module in zip(kinds, modules, strict=True)}
    if other or not all(is_inner_name(place) for place in places.values() if place):
        found = ", ".join(other or places.values())
        raise InputError(path, "modules", found, f"only {', '.join(_MODULES)}, once each, inside the folder")
    return places


def _read_dense(folder: Path, text: TextSpec) -> tuple[HeadSpec, dict[str, np.ndarray]]:
    """The head of a dense module and its parameters by dotted path; no head where the folder has no such module."""
    path = _module_paths(folder).get("Dense")
    if path is None:
        return HeadSpec(), {}
    dense = _pipeline_folder(folder) / path
    config = read_json_object(dense / "config.json", "a dense module")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation != _IDENTITY:
        raise InputError(dense / "config.json", "activation_function", activation, _IDENTITY)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise InputError(dense / "config.json", key, repr(config[key]), "sentence_embedding")
    with open_weights(dense) as tensors:
        if not {"linear.weight"} <= set(tensors.names) <= {"linear.weight", "linear.bias"}:
            raise InputError(dense, "tensors", ", ".join(tensors.names), "linear.weight, with linear.bias or without")
        weight = tensors.read("linear.weight")
        if weight.ndim != 2 or weight.shape[1] != text.features:
            raise InputError(dense, "linear.weight", weight.shape, f"(outputs, {text.features})")
        parameters = {"text_head.kernel": np.ascontiguousarray(weight.T)}
        if "linear.bias" in tensors.names:
            parameters["text_head.bias"] = tensors.read("linear.bias")
    return HeadSpec("linear", weight.shape[0], bias="text_head.bias" in parameters), parameters


def _write_dense(folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
    head = spec.text_head
    config = {"in_features": spec.text.features, "out_features": head.dim, "bias": head.bias}
    write_json(folder / "config.json", {**config, "activation_function": _IDENTITY})
    tensors = {"linear.weight": parameters["text_head.kernel"].T}
    if head.bias:
        tensors["linear.bias"] = parameters["text_head.bias"]
    write_safetensors(folder / "model.safetensors", tensors)


class Nllb(Roberta):
    """The text tower alone; translation models are not read."""

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


NLLB = Nllb()
