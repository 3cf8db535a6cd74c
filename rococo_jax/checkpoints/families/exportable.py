"""`ExportableFamily`: a family whose models can be written as folders of `transformers`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rococo_jax.checkpoints.families.base import Family
from rococo_jax.data.image_processors import RESAMPLING
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import ModelSpec, TextSpec, VisionSpec
from rococo_jax.storage import write_json


class ExportableFamily(Family):
    """A family that can be exported.

    Attributes:
        processor_classes: class of the exported image processor if images are cropped, and if they are not.
        end_token: key of the exported tokenizer for the token that ends a text.
        newer_fields: those of `CheckedSpec.non_default_optional` that its configuration can express.
    """

    processor_classes: ClassVar[tuple[str, str]] = ("CLIPImageProcessor", "CLIPImageProcessor")
    end_token: ClassVar[str] = "eos_token"
    newer_fields: ClassVar[frozenset[str]] = frozenset()

    def has_towers(self, *towers: Any) -> bool:
        """Return whether all towers with these specs are of this family; None stands for no tower."""
        expressible = {*self.newer_fields, "position_rule"}
        return all(
            tower is None or (expressible.issuperset(tower.non_default_optional) and self._has(tower))
            for tower in towers
        )

    def _has(self, tower: Any) -> bool:
        if isinstance(tower, TextSpec):
            return self.has_text_tower(tower)
        if not isinstance(tower, VisionSpec) or not self.has_image_tower(tower):
            return False
        # Families that do not keep stored positions export interpolated ones.
        keeps_stored_positions = self.interpolates_positions and tower.position_grid is not None
        return not keeps_stored_positions or tower.position_rule == self.position_rule

    def has_image_tower(self, tower: VisionSpec) -> bool:
        """Return whether an image tower is one of this family."""
        return False

    def has_text_tower(self, tower: TextSpec) -> bool:
        """Return whether a text tower is one of this family."""
        return False

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the `config.json` of a model; the exporter reads it back and compares."""
        raise NotImplementedError

    def vision_config(self, spec: VisionSpec) -> dict[str, Any]:
        """Return the configuration of an image tower; its image size is the one that the positions were stored for."""
        stored_size = spec.position_grid * spec.patch_size if spec.position_grid else spec.image_size
        return self.vision_fields.write(dataclasses.replace(spec, image_size=stored_size))

    def text_config(self, spec: TextSpec) -> dict[str, Any]:
        """Return the configuration of a text tower."""
        return self.text_fields.write(spec)

    def export_prefixes(self, spec: ModelSpec) -> tuple[str, str]:
        """Return the prefixes of both towers in a model that `transformers` 5 writes."""
        return "", ""

    def spec_of_export(self, config: Mapping[str, Any], spec: ModelSpec, path: Path) -> ModelSpec:
        """Return the spec that is read back from an exported folder with this configuration."""
        heads = {"visual_projection.weight": spec.vision_head, "text_projection.weight": spec.text_head}
        names = [tensor for tensor, head in heads.items() if head.kind != "none"]
        return self.spec_from_config(config, path, names)

    def write_more(self, folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
        """Write files that only this family has."""

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
        """Return the keys of `preprocessor_config.json` for the size of a resized image."""
        exact = preprocessing.exact_size
        return {"size": _height_width(exact) if exact else {"shortest_edge": preprocessing.shortest_edge}}

    def write_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write `tokenizer.json`, and the settings that name its special tokens."""
        tokenizer.save(folder / "tokenizer.json")
        token = tokenizer.rust.id_to_token
        settings = {
            # Reads `tokenizer.json` unchanged; the class of a family would rebuild its tokenizer.
            "tokenizer_class": "PreTrainedTokenizerFast",
            self.end_token: token(tokenizer.spec.eos_id),
            "pad_token": token(tokenizer.spec.pad_id),
            "model_max_length": tokenizer.spec.context_length,
            "padding_side": "right",
            # Padding of a fixed length is read like text. Other towers get the mask, and nothing else that libraries
            # add by default, such as token types.
            "model_input_names": ["input_ids", *([] if tokenizer.spec.fixed_length else ["attention_mask"])],
        }
        write_json(folder / "tokenizer_config.json", settings)


def _height_width(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}


class ExportablePair(ExportableFamily):
    """A family of an image and a text tower; `transformers` has a class for each tower alone, without prefixes.

    Attributes:
        classes: how the names of its classes in `transformers` begin.
        class_with_head: how the class of one tower with a head ends, if a tower without one has another class.
    """

    classes: ClassVar[str]
    class_with_head: ClassVar[str] = ""

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        model_type, shared = self.model_types[0], self.head_config(spec)
        vision = spec.vision and {**self.vision_config(spec.vision), **shared}
        text = spec.text and {**self.text_config(spec.text), **self.text_head_config(spec), **shared}
        if vision and text:
            parts = {"vision_config": vision, "text_config": text, **shared}
            return {"model_type": model_type, "architectures": [f"{self.classes}Model"], **parts}
        part, name = ("vision", "Vision") if vision else ("text", "Text")
        architectures = [f"{self.classes}{name}Model{self.class_with_head if _has_head(spec) else ''}"]
        return {"model_type": f"{model_type}_{part}_model", "architectures": architectures, **(vision or text or {})}

    def head_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the fields of the configurations of the model and of both towers that describe the heads."""
        return {}

    def text_head_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the fields of a text tower's configuration that describe its head."""
        return {}

    def export_prefixes(self, spec: ModelSpec) -> tuple[str, str]:
        is_pair = spec.vision is not None and spec.text is not None
        return self.prefixes if is_pair or (self.class_with_head and _has_head(spec)) else ("", "")


def _has_head(spec: ModelSpec) -> bool:
    return spec.vision_head.kind != "none" or spec.text_head.kind != "none"
