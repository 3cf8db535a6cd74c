"""CLIP (arXiv 2103.00020), both towers or one, with projections or without; MetaCLIP 2, over XLM-V's vocabulary."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.base import IGNORED, Section, library_defaults, tower_section
from rococo_jax.checkpoints.families.bert import ROBERTA
from rococo_jax.checkpoints.families.exportable import ExportableFamily, text_config, vision_config
from rococo_jax.checkpoints.tensors import PATCH, NameTable, Row, block_rows, leading_ones, linear_rows, norm_rows
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec

# What distinguishes its image tower, whatever its sizes.
CLIP_VISION = {
    "class_token": True,
    "patch_bias": False,
    "norm_before_blocks": True,
    "layer_scale": False,
    "pooling": "cls",
}


class Clip(ExportableFamily):
    name = "clip"
    model_types = ("clip", "clip_vision_model", "clip_text_model")
    prefixes = ("vision_model.", "text_model.")
    processor: ClassVar = {"image_processor_type": "CLIPImageProcessor"}
    lower_case = True
    classes: ClassVar[Mapping[str, str]] = {"vision": "CLIPVisionConfig", "text": "CLIPTextConfig", "": "CLIPConfig"}
    # Configurations before July 2023 all have this end token; the reference then takes the highest id of a text.
    highest_id_of_eos: ClassVar[int | None] = 2

    def spec(self, config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None) -> ModelSpec:
        vision = tower_section(config, path, "vision", self.classes["vision"])
        text = tower_section(config, path, "text", self.classes["text"])
        model = Section(path, "", config, library_defaults(self.classes[""]))
        head = HeadSpec("linear", model.integer("projection_dim"))
        lone = vision is None or text is None
        return ModelSpec(
            vision=vision and _vision(vision),
            text=text and self.text_tower(text),
            vision_head=head if vision and (not lone or "visual_projection.weight" in names) else HeadSpec(),
            text_head=head if text and (not lone or "text_projection.weight" in names) else HeadSpec(),
        )

    def text_tower(self, section: Section) -> TextSpec:
        """The text tower of a section."""
        eos = section.integer("eos_token_id")
        highest = eos == self.highest_id_of_eos
        return TextSpec(
            attention="causal",
            norm_after_blocks=False,
            pooling="highest_id" if highest else "first_eos",
            eos_id=None if highest else eos,
            **section.text_sizes(),
        )

    def table(self, spec: ModelSpec, vision_prefix: str = "", text_prefix: str = "") -> NameTable:
        rows: list[Row] = []
        if spec.vision is not None:
            rows += vision_rows(vision_prefix)
            rows.append(Row("vision.class_token", f"{vision_prefix}embeddings.class_embedding"))
            rows += norm_rows("vision.norm_before", f"{vision_prefix}pre_layrnorm")
            if spec.vision_head.kind != "none":
                rows += linear_rows("vision_head", "visual_projection", bias=False)
        if spec.text is not None:
            rows += text_rows(text_prefix)
            if spec.text_head.kind != "none":
                rows += linear_rows("text_head", "text_projection", bias=False)
        if spec.vision is not None and spec.text is not None:
            rows.append(Row("logit_scale", "logit_scale", leading_ones(0)))
        return NameTable(tuple(rows), IGNORED)

    def has_image_tower(self, tower: VisionSpec) -> bool:
        return tower.pooling != "attention" and not tower.layer_scale

    def has_text_tower(self, tower: TextSpec) -> bool:
        return tower.attention == "causal"

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        dim = {"projection_dim": spec.dim}
        vision = spec.vision and {**vision_config(spec.vision), **dim}
        # In configurations the id 2 means that the highest id of a text ends it.
        eos = spec.text and {"eos_token_id": 2 if spec.text.pooling == "highest_id" else spec.text.eos_id}
        text = spec.text and {**text_config(spec.text), **eos, **dim}
        if vision and text:
            parts = {"vision_config": vision, "text_config": text, **dim}
            return {"model_type": "clip", "architectures": ["CLIPModel"], **parts}
        part, name, head = ("vision", "Vision", spec.vision_head) if vision else ("text", "Text", spec.text_head)
        suffix = "" if head.kind == "none" else "WithProjection"
        return {"model_type": f"clip_{part}_model", "architectures": [f"CLIP{name}Model{suffix}"], **(vision or text)}

    def export_prefixes(self, spec: ModelSpec) -> tuple[str, str]:
        bare = (spec.vision is None or spec.text is None) and spec.vision_head.kind == spec.text_head.kind == "none"
        return ("", "") if bare else self.prefixes


class MetaClip2(Clip):
    """MetaCLIP 2 (arXiv 2507.22062): the towers of CLIP with the vocabulary of XLM-V. Exported as a CLIP if possible.

    Texts are pooled at the first end token for every id. In a configuration of CLIP the id 2 means another pooling.
    """

    name = "metaclip2"
    model_types = ("metaclip_2", "metaclip_2_vision_model", "metaclip_2_text_model")
    classes: ClassVar = {"vision": "MetaClip2VisionConfig", "text": "MetaClip2TextConfig", "": "MetaClip2Config"}
    highest_id_of_eos: ClassVar = None
    lower_case = False

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        text = config.get("text_config") or config
        limit = {"max_position_embeddings": text.get("max_position_embeddings", 77)}
        return ROBERTA.read_tokenizer(source, {"model_type": "xlm-roberta", "text_config": limit})


CLIP, METACLIP2 = Clip(), MetaClip2()


def _vision(section: Section) -> VisionSpec:
    return VisionSpec(
        mlp_width=section.integer("intermediate_size"),
        **CLIP_VISION,
        **section.image_sizes(),
    )


def vision_rows(prefix: str) -> list[Row]:
    """Rows of the layers that the image towers of CLIP and SigLIP share."""
    return [
        Row("vision.patch.kernel", f"{prefix}embeddings.patch_embedding.weight", PATCH),
        Row("vision.positions", f"{prefix}embeddings.position_embedding.weight"),
        *_block_rows("vision", prefix),
        *norm_rows("vision.norm", f"{prefix}post_layernorm"),
    ]


def text_rows(prefix: str) -> list[Row]:
    """Rows of a text tower of CLIP or SigLIP."""
    return [
        Row("text.words", f"{prefix}embeddings.token_embedding.weight"),
        Row("text.positions", f"{prefix}embeddings.position_embedding.weight"),
        *_block_rows("text", prefix),
        *norm_rows("text.norm", f"{prefix}final_layer_norm"),
    ]


def _block_rows(tower: str, prefix: str) -> list[Row]:
    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    layers = {"qkv": qkv, "out": "self_attn.out_proj", "mlp": ("mlp.fc1", "mlp.fc2")}
    return block_rows(tower, f"{prefix}encoder.layers.{{layer}}", norms=("layer_norm1", "layer_norm2"), **layers)
