"""`Family`: everything that is particular to a family of Hugging Face models, most of it as lists.

A family is its names of tensors (`checkpoints.names`), its fields of `config.json` (`checkpoints.fields`) and the
fields of our spec that are the same for all its models.
"""

import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.fields import FieldList, Section, fields
from rococo_jax.checkpoints.names import NameList, NameTable, Row, name_table, read_parameters
from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec, TextSpec, VisionSpec
from rococo_jax.models.checked_spec import PositionRule

# Buffers that old releases stored, tensors of heads for other tasks, and those that only masked pretraining uses.
IGNORED = (
    r"(.*\.)?position_ids",
    r"(.*\.)?mask_token",
    r"classifier\.(weight|bias)",
    r"(bert\.|roberta\.)?pooler\.dense\.(weight|bias)",
    r"lm_head\..*",
    r"cls\.(predictions|seq_relationship)\..*",
)
# Fields that most towers of transformers share.
TOWER_FIELDS = fields("""
    width       hidden_size          whole
    layers      num_hidden_layers    whole
    heads       num_attention_heads  whole
    mlp_width   intermediate_size    whole
    activation  hidden_act           activation
    norm_eps    layer_norm_eps       number
""")
VISION_FIELDS = TOWER_FIELDS + fields("""
    image_size  image_size    side
    patch_size  patch_size    side
    -           num_channels  rgb
""")
TEXT_FIELDS = TOWER_FIELDS + fields("""
    vocabulary_size  vocab_size               whole
    context_length   max_position_embeddings  whole
""")


class Family:
    """Models of `transformers` that share a configuration and the names of their tensors.

    A subclass holds everything that is particular to a family; one of `ExportableFamily` can be written as well. Other
    modules use these attributes and methods and never compare the family's name.

    Attributes:
        name: the name in messages.
        model_types: values of `model_type` in `config.json`.
        names: the names of tensors of all models of the family.
        gated_names: the names of image towers with a gated MLP, if they differ.
        ignored: regular expressions of tensors that are not used.
        aliases: names of older releases, see `NameTable`.
        prefixes: prefixes of the image and the text tower; some releases leave them out.
        vision_fields, text_fields: fields of the configuration.
        fixed_vision, fixed_text: fields of our specs that all models of the family share.
        poolings: the choices of pooling, the default first; empty if the family has one pooling.
        constants: parameters that no checkpoint of the family stores, by our dotted path.
        processor: the published image processor, for folders without a file for it.
        interpolates_positions: `transformers` resizes the stored positions to the size of the image processor, and
            ignores `image_size` in `config.json`.
        position_rule: how it resizes them (`models.positions`).
        lower_case: the text towers were trained on lower case alone.
    """

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    names: ClassVar[NameList]
    gated_names: ClassVar[NameList | None] = None
    ignored: ClassVar[tuple[str, ...]] = IGNORED
    aliases: ClassVar[tuple[tuple[str, str], ...]] = ()
    prefixes: ClassVar[tuple[str, str]] = ("", "")
    vision_fields: ClassVar[FieldList] = VISION_FIELDS
    text_fields: ClassVar[FieldList] = TEXT_FIELDS
    fixed_vision: ClassVar[Mapping[str, Any]] = {}
    fixed_text: ClassVar[Mapping[str, Any]] = {}
    poolings: ClassVar[tuple[str, ...]] = ()
    constants: ClassVar[Mapping[str, np.ndarray]] = {}
    processor: ClassVar[Mapping[str, Any]] = {}
    interpolates_positions: ClassVar[bool] = False
    position_rule: ClassVar[PositionRule] = "bicubic"
    lower_case: ClassVar[bool] = False

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        """Return the spec of a checkpoint; the arguments are those of `spec_from_config`."""
        raise NotImplementedError

    def vision_spec(self, section: Section, **changes: Any) -> VisionSpec:
        """Return the image tower of a section; `changes` are further fields of its spec."""
        return VisionSpec(**{**self.fixed_vision, **self.vision_fields.read(section), **changes})

    def text_spec(self, section: Section, **changes: Any) -> TextSpec:
        """Return the text tower of a section; `changes` are further fields of its spec."""
        return TextSpec(**{**self.fixed_text, **self.text_fields.read(section), **changes})

    def rows(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> list[Row]:
        """Return the rows of a name table; they may name parameters that the model does not have."""
        is_gated = spec.vision is not None and spec.vision.gated_mlp
        listed = self.gated_names if is_gated and self.gated_names is not None else self.names
        return listed.rows(vision_prefix, text_prefix)

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        """Return the names of all tensors of a model."""
        shapes = {path: shape for path, shape in parameter_shapes(spec).items() if path not in self.constants}
        return name_table(self.rows(spec, vision_prefix, text_prefix), shapes, self.ignored, self.aliases)

    def spec_from_config(
        self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None = None
    ) -> ModelSpec:
        """Return the spec of a checkpoint.

        Args:
            config: the content of `config.json`; values that it leaves out are the defaults of `transformers`.
            path: the file, for errors.
            names: the tensors of the checkpoint, which show whether a single tower has a head.
            pooling: one of `poolings`, or None for the first of them.

        Raises InputError if the pooling is none of the family's, or the towers here cannot follow a value.
        """
        if pooling is not None and pooling not in self.poolings:
            expected = " or ".join(self.poolings) if self.poolings else "no value: the family has one pooling"
            raise InputError("pooling", f"a {config['model_type']} model", pooling, expected)
        return self.spec(config, path, names, pooling or next(iter(self.poolings), None))

    def read(
        self, folder: Path, tensors: Tensors, config: Mapping[str, Any], pooling: str | None
    ) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        """Read the spec and the parameters of a folder. Raises InputError if they do not fit."""
        spec = self.spec_from_config(config, folder / "config.json", tensors.names, pooling)
        return spec, self.read_parameters(tensors, spec)

    def read_parameters(self, tensors: Tensors, spec: ModelSpec) -> dict[str, np.ndarray]:
        """Read the parameters of a checkpoint; those that it does not store are the family's `constants`."""
        vision_prefix, text_prefix = (
            prefix if any(f".{prefix}" in f".{name}" for name in tensors.names) else "" for prefix in self.prefixes
        )
        return {**read_parameters(tensors, self.table(spec, vision_prefix, text_prefix)), **self.constants}

    def notes(self, spec: ModelSpec) -> dict[str, str]:
        """Return further entries of provenance."""
        return {}

    def processor_settings(self, config: Any) -> Any:
        """Return the settings of an image processor's file in the form of `Preprocessing.from_huggingface`."""
        return config

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        """Read the tokenizer of a folder or hub name; `config` is the model's, for its lengths."""
        return read_huggingface_tokenizer(source, config)


def library_defaults(config_class: str) -> dict[str, Any]:
    """Return the defaults of a configuration class of `transformers`, by field.

    They are part of the format: a `config.json` leaves out values that equal them.

    >>> library_defaults("CLIPVisionConfig")["patch_size"]
    32
    """
    import transformers

    # The signature, not an instance: an instance computes some fields from others and logs about its token ids.
    parameters = inspect.signature(getattr(transformers, config_class)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def part_section(path: Path, part: str, config: Mapping[str, Any], config_class: str) -> Section:
    """Return a part that every configuration of the class has, such as `vision_config`; it may be left out."""
    return Section(path, part, config.get(part) or {}, library_defaults(config_class))


def tower_section(config: Mapping[str, Any], path: Path, part: str, config_class: str) -> Section | None:
    """Return the section of the `vision` or `text` tower, or None if the checkpoint is the other tower alone."""
    model_type, defaults = config["model_type"], library_defaults(config_class)
    if model_type.endswith("_model"):
        return Section(path, "", config, defaults) if model_type.endswith(f"_{part}_model") else None
    # Early files have `text_config_dict` beside `text_config`; `transformers` prefers it, defaults included.
    for key in (f"{part}_config_dict", f"{part}_config"):
        if config.get(key) is not None:
            return Section(path, key, config[key], defaults)
    return Section(path, f"{part}_config", {}, defaults)
