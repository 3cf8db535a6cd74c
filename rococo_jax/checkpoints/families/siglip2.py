"""SigLIP 2 NaFlex (arXiv 2502.14786): SigLIP's towers, whose grid of patches follows the shape of each image."""

from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import TOWER_FIELDS
from rococo_jax.checkpoints.families.siglip import SIGLIP_NAMES, SIGLIP_VISION, Siglip
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.names import names
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import VisionSpec
from rococo_jax.storage import read_json_object, write_json


class Siglip2(Siglip):
    """The positions stay as they are stored, for a square of `num_patches`.

    How many patches an image has is a setting of the image processor.
    """

    name = "siglip2"
    classes = "Siglip2"
    model_types = ("siglip2", "siglip2_vision_model", "siglip2_text_model")
    # A linear map of patches, not a convolution.
    names = SIGLIP_NAMES + names("vision.patch.kernel  {vision}embeddings.patch_embedding.weight  kernel")
    vision_fields = TOWER_FIELDS + fields("""
        position_grid  num_patches      root
        patch_size     patch_size       side
        -              num_channels     rgb
        -              vision_use_head  true
    """)
    position_rule = "antialiased_linear"
    fixed_vision: ClassVar = {**SIGLIP_VISION, "flexible_grid": True, "position_rule": position_rule}
    processor: ClassVar = {"image_processor_type": "Siglip2ImageProcessor"}
    interpolates_positions = True
    processor_classes = ("Siglip2ImageProcessor",) * 2
    newer_fields = frozenset(("flexible_grid",))

    def vision_spec(self, section: Section, **changes: Any) -> VisionSpec:
        image_size = section.root("num_patches") * section.side("patch_size")
        return super().vision_spec(section, image_size=image_size, **changes)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.flexible_grid

    def write_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        super().write_tokenizer(folder, tokenizer)
        # The class that `transformers` uses for every SigLIP 2 rebuilds the tokenizer.
        settings = read_json_object(folder / "tokenizer_config.json", "tokenizer settings")
        write_json(folder / "tokenizer_config.json", {**settings, "tokenizer_class": "Siglip2Tokenizer"})

    def processor_size(self, preprocessing: Preprocessing) -> dict[str, Any]:
        return {"patch_size": preprocessing.patch_size, "max_num_patches": preprocessing.max_patches}


SIGLIP2 = Siglip2()
