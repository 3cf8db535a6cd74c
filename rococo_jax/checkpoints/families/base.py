"""`Family`, all that is known of a family of Hugging Face models, and the checked reading of its `config.json`."""

import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.checkpoints.tensors import NameTable, Tensors, read_parameters
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError, is_number, is_whole
from rococo_jax.models import ModelSpec
from rococo_jax.models.checked_spec import PositionRule, largest
from rococo_jax.models.spec import Activation

# How configurations spell activations, the spelling of an export first. "gelu" is the exact one.
SPELLINGS: dict[Activation, tuple[str, ...]] = {
    "quick_gelu": ("quick_gelu",),
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
    "silu": ("silu", "swish"),
    "relu": ("relu",),
}
_ACTIVATIONS = {spelling: ours for ours, spellings in SPELLINGS.items() for spelling in spellings}
# Buffers that old releases stored, tensors of heads for other tasks, and what only masked pretraining uses.
IGNORED = (
    r"(.*\.)?position_ids",
    r"(.*\.)?mask_token",
    r"classifier\.(weight|bias)",
    r"(bert\.|roberta\.)?pooler\.dense\.(weight|bias)",
    r"lm_head\..*",
    r"cls\.(predictions|seq_relationship)\..*",
)


class Family:
    """Models of `transformers` that share a configuration and the names of their tensors.

    A subclass holds everything that is particular to a family; one of `ExportableFamily` can be written as well. Other
    modules use these attributes and methods and never compare the family's name.

    Attributes:
        name: what users and errors call it.
        model_types: the values of `model_type` in `config.json`.
        prefixes: where the image and the text tower lie in a checkpoint; some releases leave the prefix out.
        poolings: the choices of pooling, the default first; empty where the family fixes it.
        constants: parameters that no checkpoint of the family holds, by our dotted path.
        processor: the published image processor, for folders without a file for it.
        interpolates_positions: `transformers` resizes the stored positions, if any, to the size of the image processor,
            and `image_size` in `config.json` does not count.
        position_rule: how it does so (`models.positions`).
        lower_case: its text towers were trained on lower case alone.
    """

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    prefixes: ClassVar[tuple[str, str]] = ("", "")
    poolings: ClassVar[tuple[str, ...]] = ()
    constants: ClassVar[Mapping[str, np.ndarray]] = {}
    processor: ClassVar[Mapping[str, Any]] = {}
    interpolates_positions: ClassVar[bool] = False
    position_rule: ClassVar[PositionRule] = "bicubic"
    lower_case: ClassVar[bool] = False

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        """The spec of a checkpoint; see `spec_from_config`."""
        raise NotImplementedError

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        """The names of the tensors of a model."""
        raise NotImplementedError

    def spec_from_config(
        self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None = None
    ) -> ModelSpec:
        """The spec of a checkpoint.

        Args:
            config: what `config.json` holds; values that it leaves out are the defaults of `transformers`.
            names: the tensors of the checkpoint, which decide whether a lone tower has a head.
            pooling: one of `poolings`, or None for the first of them.

        Raises InputError where the pooling is none of the family's, or the towers here cannot follow a value.
        """
        if pooling is not None and pooling not in self.poolings:
            fixed = "no choice: the family fixes how it is pooled"
            wanted = " or ".join(self.poolings) if self.poolings else fixed
            raise InputError("pooling", f"a {config['model_type']} model", pooling, wanted)
        return self.spec(config, path, names, pooling or next(iter(self.poolings), None))

    def read(
        self, folder: Path, tensors: Tensors, config: Mapping[str, Any], pooling: str | None
    ) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        """The spec and the parameters of a folder. InputError where they do not fit, and as `spec_from_config`."""
        spec = self.spec_from_config(config, folder / "config.json", tensors.names, pooling)
        return spec, self.read_parameters(tensors, spec)

    def read_parameters(self, tensors: Tensors, spec: ModelSpec) -> dict[str, np.ndarray]:
        """The parameters of a checkpoint, with `constants` for those that it does not hold."""
        present = (prefix if any(f".{prefix}" in f".{n}" for n in tensors.names) else "" for prefix in self.prefixes)
        shapes = {path: shape for path, shape in parameter_shapes(spec).items() if path not in self.constants}
        return {**read_parameters(tensors, self.table(spec, *present), shapes), **self.constants}

    def notes(self, spec: ModelSpec) -> dict[str, str]:
        """Entries of provenance for a checkpoint of this family."""
        return {}

    def processor_settings(self, config: Any) -> Any:
        """An image processor's file as `Preprocessing.from_huggingface` reads it."""
        return config

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer of a folder or hub name; `config` is the model's, for its lengths."""
        return read_huggingface_tokenizer(source, config)


def library_defaults(config_class: str) -> dict[str, Any]:
    """The defaults of a configuration class of `transformers`, by field.

    They are part of the format: a `config.json` leaves out what equals them.

    >>> library_defaults("CLIPVisionConfig")["patch_size"]
    32
    """
    import transformers

    # The signature, not an instance: an instance works some fields out from others and logs about its token ids.
    parameters = inspect.signature(getattr(transformers, config_class)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


class Section:
    """One part of a configuration (`name`, empty for the whole file) over its defaults. Errors name the field."""

    def __init__(self, source: object, name: str, given: Any, defaults: Mapping[str, Any]):
        if not isinstance(given, Mapping):
            raise InputError(source, name or "configuration", type(given).__name__, "a JSON object")
        self.source, self.name, self.values = source, name, {**defaults, **given}

    def field(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def refuse(self, key: str, wanted: str) -> InputError:
        return InputError(self.source, self.field(key), repr(self.values[key]), wanted)

    def integer(self, key: str) -> int:
        value = self.values[key]
        if not is_whole(value) or not 1 <= value <= largest(key):
            raise self.refuse(key, f"a whole number, 1 to {largest(key):,}")
        return value

    def count(self, key: str) -> int:
        """A whole number that may be 0."""
        return 0 if self.values[key] == 0 and is_whole(self.values[key]) else self.integer(key)

    def side(self, key: str) -> int:
        """The side of a square: one number, or two equal ones."""
        value = self.values[key]
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            self.values[key] = value[0]
        return self.integer(key)

    def number(self, key: str) -> float:
        value = self.values[key]
        if not is_number(value) or value <= 0:
            raise self.refuse(key, "a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        if not isinstance(self.values[key], bool):
            raise self.refuse(key, "true or false")
        return self.values[key]

    def activation(self) -> Activation:
        value = self.values["hidden_act"]
        if value not in tuple(_ACTIVATIONS):  # the value may be unhashable
            raise self.refuse("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def sizes(self) -> dict[str, Any]:
        """The fields that image and text towers share, `mlp_width` apart."""
        return {
            "width": self.integer("hidden_size"),
            "layers": self.integer("num_hidden_layers"),
            "heads": self.integer("num_attention_heads"),
            "activation": self.activation(),
            "norm_eps": self.number("layer_norm_eps"),
        }

    def image_sizes(self) -> dict[str, Any]:
        """The fields of a ViT that every family spells alike, `mlp_width` apart."""
        if self.values.get("num_channels", 3) != 3:
            raise self.refuse("num_channels", "3: red, green and blue")
        return {"image_size": self.side("image_size"), "patch_size": self.side("patch_size"), **self.sizes()}

    def text_sizes(self) -> dict[str, Any]:
        """The fields of a text tower that every family spells alike."""
        return {
            "vocabulary_size": self.integer("vocab_size"),
            "context_length": self.integer("max_position_embeddings"),
            "mlp_width": self.integer("intermediate_size"),
            **self.sizes(),
        }


def part_section(path: Path, part: str, config: Mapping[str, Any], config_class: str) -> Section:
    """A part of a configuration that always has it, such as `vision_config`; empty where it is left out."""
    return Section(path, part, config.get(part) or {}, library_defaults(config_class))


def tower_section(config: Mapping[str, Any], path: Path, part: str, config_class: str) -> Section | None:
    """The section of the `vision` or `text` tower, or None where the checkpoint holds the other tower alone."""
    kind, defaults = config["model_type"], library_defaults(config_class)
    if kind.endswith("_model"):
        return Section(path, "", config, defaults) if kind.endswith(f"_{part}_model") else None
    # Early files carry `text_config_dict` beside `text_config`, and `transformers` lets it win, defaults included.
    for key in (f"{part}_config_dict", f"{part}_config"):
        if config.get(key) is not None:
            return Section(path, key, config[key], defaults)
    return Section(path, f"{part}_config", {}, defaults)
