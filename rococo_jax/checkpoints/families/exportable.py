"""`ExportableFamily`, a family whose models can be written in the form of `transformers`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import SPELLINGS, Family
from rococo_jax.data.image_processors import RESAMPLING
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import ModelSpec, TextSpec, VisionSpec
from rococo_jax.storage import write_json


class ExportableFamily(Family):
    """A family with the way back.

    Attributes:
        processor_classes: of an exportable image processor, where images are cropped and where they are not.
        end_token: of an exportable tokenizer: the name of the token that ends a text.
        newer_fields: those of `CheckedSpec.non_default_optional` that its configuration can express.
    """

    processor_classes: ClassVar[tuple[str, str]] = ("CLIPImageProcessor", "CLIPImageProcessor")
    end_token: ClassVar[str] = "eos_token"
    newer_fields: ClassVar[frozenset[str]] = frozenset()

    def has_towers(self, *towers: Any) -> bool:
        """Whether exportable towers of these specs are all of this family; None stands for no tower."""
        known = {*self.newer_fields, "position_rule"}
        return all(
            tower is None or (known.issuperset(tower.non_default_optional) and self._has(tower)) for tower in towers
        )

    def _has(self, tower: Any) -> bool:
        if isinstance(tower, TextSpec):
            return self.has_text_tower(tower)
        if not isinstance(tower, VisionSpec) or not self.has_image_tower(tower):
            return False
        # Other families' positions are exportable interpolated.
        stored = self.interpolates_positions and tower.position_grid is not None
        return not stored or tower.position_rule == self.position_rule

    def has_image_tower(self, tower: VisionSpec) -> bool:
        """Whether an exportable image tower of this kind is one of this family."""
        return False

    def has_text_tower(self, tower: TextSpec) -> bool:
        """Whether an exportable text tower of this kind is one of this family."""
        return False

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """The `config.json` of a model; the exporter reads it back and compares."""
        raise NotImplementedError

    def export_prefixes(self, spec: ModelSpec) -> tuple[str, str]:
        """The prefixes of both towers where `transformers` 5 looks for them in an exportable model."""
        return "", ""

    def spec_of_export(self, config: Mapping[str, Any], spec: ModelSpec, path: Path) -> ModelSpec:
        """The spec that an exportable folder with this configuration would have, for a model with this spec."""
        heads = {"visual_projection.weight": spec.vision_head, "text_projection.weight": spec.text_head}
        names = [tensor for tensor, head in heads.items() if head.kind != "none"]
        return self.spec_from_config(config, path, names)

    def write_more(self, folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
        """Write the files of an export that only this family has."""

    def write_processor(self, folder: Path, preprocessing: Preprocessing) -> None:
        """Write `preprocessor_config.json`."""
        crop = preprocessing.crop_size
        config = {
            "image_processor_type": self.processor_classes[crop is None],
            "do_convert_rgb": True,
            "do_resize": True,
            **self.processor_size(preprocessing),
            "resample": next(number for number, name in RESAMPLING.items() if name == preprocessing.resample),
            "do_center_crop": crop is not None,
            "do_rescale": True,
            "rescale_factor": preprocessing.rescale_factor,
            "do_normalize": True,
            "image_mean": list(preprocessing.mean),
            "image_std": list(preprocessing.std),
        }
        config |= {} if crop is None else {"crop_size": _height_width(crop)}
        write_json(folder / "preprocessor_config.json", config)

    def processor_size(self, preprocessing: Preprocessing) -> dict[str, Any]:
        """How large `preprocessor_config.json` wants a resized image."""
        exact = preprocessing.exact_size
        return {"size": _height_width(exact) if exact else {"shortest_edge": preprocessing.shortest_edge}}

    def write_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write `tokenizer.json`, and the settings that name its special tokens."""
        tokenizer.save(folder / "tokenizer.json")
        token = tokenizer.rust.id_to_token
        settings = {
            # Reads `tokenizer.json` as it is; a family's own class would build its tokenizer anew.
            "tokenizer_class": "PreTrainedTokenizerFast",
            self.end_token: token(tokenizer.spec.eos_id),
            "pad_token": token(tokenizer.spec.pad_id),
            "model_max_length": tokenizer.spec.context_length,
        }
        write_json(folder / "tokenizer_config.json", settings)


def _height_width(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}


def vision_config(spec: VisionSpec) -> dict[str, Any]:
    """The fields of an exportable image tower that every family spells alike."""
    # What the positions were stored for, which is not always what the tower is used at.
    size = spec.position_grid * spec.patch_size if spec.position_grid else spec.image_size
    return {**_exported_sizes(spec), "image_size": size, "patch_size": spec.patch_size}


def text_config(spec: TextSpec) -> dict[str, Any]:
    """The fields of an exportable text tower that every family spells alike."""
    sizes = {"vocab_size": spec.vocabulary_size, "max_position_embeddings": spec.context_length}
    return {**_exported_sizes(spec), **sizes}


def _exported_sizes(spec: VisionSpec | TextSpec) -> dict[str, Any]:
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp_width,
        "hidden_act": SPELLINGS[spec.activation][0],
        "layer_norm_eps": spec.norm_eps,
    }


class ExportablePair(ExportableFamily):
    """A family of an image and a text tower; `transformers` has a class of its own for each alone, without prefixes.

    Attributes:
        classes: how the names of its classes in `transformers` begin.
    """

    classes: ClassVar[str]

    def config_of(self, vision: dict[str, Any] | None, text: dict[str, Any] | None) -> dict[str, Any]:
        """The `config.json` of both sections, or of the one that is there."""
        if vision and text:
            parts = {"vision_config": vision, "text_config": text}
            return {"model_type": self.name, "architectures": [f"{self.classes}Model"], **parts}
        part, name = ("vision", "Vision") if vision else ("text", "Text")
        architectures = [f"{self.classes}{name}Model"]
        return {"model_type": f"{self.name}_{part}_model", "architectures": architectures, **(vision or text or {})}

    def export_prefixes(self, spec: ModelSpec) -> tuple[str, str]:
        return ("", "") if spec.vision is None or spec.text is None else self.prefixes
