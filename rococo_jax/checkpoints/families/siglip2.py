"""SigLIP 2 NaFlex (arXiv 2502.14786): SigLIP's towers, whose grid of patches follows the shape of each image."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import Section
from rococo_jax.checkpoints.families.siglip import Siglip
from rococo_jax.checkpoints.tensors import KERNEL, NameTable
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import ModelSpec, VisionSpec
from rococo_jax.storage import read_json_object, write_json


class Siglip2(Siglip):
    """The positions stay as they are stored, for a square of `num_patches`; the image processor says how many patches
    an image has.
    """

    name = "siglip2"
    model_types = ("siglip2", "siglip2_vision_model", "siglip2_text_model")
    processor: ClassVar = {"image_processor_type": "Siglip2ImageProcessor"}
    interpolates_positions = True
    position_rule = "antialiased_linear"
    classes = "Siglip2"
    processor_classes = ("Siglip2ImageProcessor",) * 2
    newer_fields = frozenset(("flexible_grid",))

    def vision_tower(self, section: Section) -> VisionSpec:
        count = section.integer("num_patches")
        side = math.isqrt(count)
        if side**2 != count:
            raise section.refuse("num_patches", "a square number: the patches that positions are stored for")
        section.values["image_size"] = side * section.side("patch_size")
        tower = super().vision_tower(section)
        return dataclasses.replace(tower, flexible_grid=True, position_rule=self.position_rule, position_grid=side)

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        table = super().table(spec, vision_prefix, text_prefix)
        # A linear map of patches, not a convolution.
        rows = (dataclasses.replace(r, transform=KERNEL) if r.ours == "vision.patch.kernel" else r for r in table.rows)
        return dataclasses.replace(table, rows=tuple(rows))

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.flexible_grid

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        config = super().config(spec)
        vision = config.get("vision_config", config)
        if vision.pop("image_size", None):
            vision["num_patches"] = spec.vision.position_grid**2
        return config

    def write_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        super().write_tokenizer(folder, tokenizer)
        # The class that `transformers` takes for every SigLIP 2 makes the tokenizer anew, and pads before a text.
        settings = read_json_object(folder / "tokenizer_config.json", "tokenizer settings")
        own = {"tokenizer_class": "Siglip2Tokenizer", "padding_side": "right"}
        write_json(folder / "tokenizer_config.json", {**settings, **own})

    def processor_size(self, preprocessing: Preprocessing) -> dict[str, Any]:
        return {"patch_size": preprocessing.patch_size, "max_num_patches": preprocessing.max_patches}


SIGLIP2 = Siglip2()
