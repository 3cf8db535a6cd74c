"""The families of Hugging Face models, by the `model_type` of their `config.json`.

To add a family, write a file beside this one with a `Family`, and add it to `_ALL`.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.checkpoints.families.base import Family
from rococo_jax.checkpoints.families.bert import BERT, ROBERTA
from rococo_jax.checkpoints.families.blip import BLIP
from rococo_jax.checkpoints.families.clip import CLIP, METACLIP2
from rococo_jax.checkpoints.families.dinov2 import DINOV2, DINOV2_WITH_REGISTERS
from rococo_jax.checkpoints.families.dinov3 import DINOV3
from rococo_jax.checkpoints.families.exportable import ExportableFamily
from rococo_jax.checkpoints.families.siglip import SIGLIP, SIGLIP2
from rococo_jax.checkpoints.families.tipsv2 import TIPSV2
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.models import ModelSpec

_ALL = (CLIP, SIGLIP, METACLIP2, DINOV2, DINOV2_WITH_REGISTERS, DINOV3, BERT, ROBERTA, BLIP, TIPSV2, SIGLIP2)
_ELSEWHERE = (
    "transformers:NAME runs a model in its own library if that gives image and text features; a text model that "
    "belongs to another folder's image model is a class of your own (docs/how-to/your-model.md)"
)
FAMILIES: dict[str, Family] = {model_type: family for family in _ALL for model_type in family.model_types}


def family_of_config(config: Mapping[str, Any], path: Path) -> Family:
    """Return the family of a `config.json`. Raises InputError if no family has its `model_type`."""
    model_type = config.get("model_type")
    if model_type == "dinov3_convnext":
        raise InputError(path, "model_type", f"{model_type!r}, DINOv3's ConvNeXt", "its ViT, of model_type dinov3_vit")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        classes = architectures(config)
        problem = repr(model_type) + (f" ({classes})" if classes else "")
        raise InputError(path, "model_type", problem, f"one of {', '.join(FAMILIES)}; {_ELSEWHERE}")
    return FAMILIES[model_type]


def architectures(config: Mapping[str, Any]) -> str:
    """Return the classes of `transformers` that a `config.json` names, empty if it names none."""
    names = config.get("architectures")
    return ", ".join(names) if is_list_of(str, names) else ""


def has_own_code(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` names code in its repository, or a class of another name than its `model_type`.

    >>> has_own_code({"model_type": "clip", "architectures": ["FGCLIPModel"]})
    True
    """
    kind = re.sub(r"_(vision|text)_model$|[-_]", "", str(config.get("model_type")))
    is_renamed = any(not name.lower().startswith(kind) for name in architectures(config).split(", ") if name)
    return bool(config.get("auto_map")) or is_renamed


@contextlib.contextmanager
def naming_other_tasks(path: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Name the class of a checkpoint for another task, such as CLIPForImageClassification, if its tensors do not fit.

    A list of tensors alone does not explain what the file is.
    """
    try:
        yield
    except InputError as error:
        classes = architectures(config)
        if error.field != "tensors" or not re.search("For[A-Z]", classes):
            raise
        problem = f"{classes}, not the towers of a {config['model_type']} alone: {error.found}"
        expected = f"a {config['model_type']} with both towers or one of them alone ({error.wanted}); {_ELSEWHERE}"
        raise InputError(path, "architectures", problem, expected) from None


def spec_from_config(
    config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None = None
) -> ModelSpec:
    """Return the spec of a checkpoint; see `Family.spec_from_config`."""
    return family_of_config(config, path).spec_from_config(config, path, names, pooling)


def family_of_spec(spec: ModelSpec, source: object) -> ExportableFamily:
    """Return the family that a model can be exported as. Raises InputError if no family has all its towers."""
    exportable = [family for family in FAMILIES.values() if isinstance(family, ExportableFamily)]

    def family_of(*towers: Any) -> ExportableFamily | None:
        return next((family for family in exportable if family.has_towers(*towers)), None)

    family = family_of(spec.vision, spec.text)
    if family is None:
        kinds = {"an image": family_of(spec.vision), "a text": family_of(spec.text)}
        problem = " and ".join(
            f"{tower} tower as in {family.name}" if family else f"{tower} tower that transformers does not have"
            for tower, family in kinds.items()
        )
        expected = (
            "both towers as in one model of transformers (clip, siglip or tipsv2); the demo models and joined models "
            "have no counterpart there"
        )
        raise InputError(source, "towers", problem, expected)
    return family
