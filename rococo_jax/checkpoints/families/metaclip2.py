"""MetaCLIP 2 (arXiv 2507.22062): CLIP's towers over XLM-V's vocabulary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rococo_jax.checkpoints.families.bert import ROBERTA
from rococo_jax.checkpoints.families.clip import Clip
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.models import ConvolutionalSpec, TextSpec, VisionSpec


class MetaClip2(Clip):
    """Texts are pooled at the first end token whatever its id; in a CLIP's configuration the id 2 means another rule.

    Exported as a CLIP where that can express it.
    """

    name = "metaclip2"
    model_types = ("metaclip_2", "metaclip_2_vision_model", "metaclip_2_text_model")
    classes: ClassVar = {"vision": "MetaClip2VisionConfig", "text": "MetaClip2TextConfig", "": "MetaClip2Config"}
    highest_id_of_eos: ClassVar = None
    lower_case = False

    def has_tower(self, tower: VisionSpec | ConvolutionalSpec | TextSpec) -> bool:
        return False

    def read_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
        text = config.get("text_config") or config
        limit = {"max_position_embeddings": text.get("max_position_embeddings", 77)}
        return ROBERTA.read_tokenizer(source, {"model_type": "xlm-roberta", "text_config": limit})


METACLIP2 = MetaClip2()
