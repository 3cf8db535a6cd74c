"""The families of Hugging Face models, by the `model_type` of their `config.json`.

A new family is one file beside this one, with a `Family` object, and its place in `FAMILIES`.
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
from rococo_jax.checkpoints.families.siglip import SIGLIP
from rococo_jax.checkpoints.families.siglip2 import SIGLIP2
from rococo_jax.checkpoints.families.tipsv2 import TIPSV2
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.models import ModelSpec

_ALL = (CLIP, SIGLIP, METACLIP2, DINOV2, DINOV2_WITH_REGISTERS, DINOV3, BERT, ROBERTA, BLIP, TIPSV2, SIGLIP2)
_ELSEWHERE = "transformers:NAME runs a model in its own library if that gives image and text features"
FAMILIES: dict[str, Family] = {kind: family for family in _ALL for kind in family.model_types}


def family_of_config(config: Mapping[str, Any], path: Path) -> Family:
    """The family of a `config.json`. Raises InputError where its `model_type` is of none."""
    kind = config.get("model_type")
    if kind == "dinov3_convnext":
        raise InputError(path, "model_type", f"{kind!r}, DINOv3's ConvNeXt", "its ViT, whose model_type is dinov3_vit")
    if not isinstance(kind, str) or kind not in FAMILIES:
        classes = _architectures(config)
        found = repr(kind) + (f" ({classes})" if classes else "")
        raise InputError(path, "model_type", found, f"one of {', '.join(FAMILIES)}; {_ELSEWHERE}")
    return FAMILIES[kind]


def _architectures(config: Mapping[str, Any]) -> str:
    """Return the classes of `transformers` that a `config.json` names, empty where it names none."""
    names = config.get("architectures")
    return ", ".join(names) if is_list_of(str, names) else ""


@contextlib.contextmanager
def naming_other_tasks(path: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Name the class of a checkpoint for another task, such as CLIPForImageClassification, where its tensors do not
    fit: their list alone does not say what the file is.
    """
    try:
        yield
    except InputError as error:
        classes = _architectures(config)
        if error.field != "tensors" or not re.search("For[A-Z]", classes):
            raise
        found = f"{classes}, not the towers of a {config['model_type']} alone: {error.found}"
        wanted = f"a {config['model_type']} with both towers or one of them alone ({error.wanted}); {_ELSEWHERE}"
        raise InputError(path, "architectures", found, wanted) from None


def spec_from_config(
    config: Mapping[str, Any], path: Path, names: Collection[str], pooling: str | None = None
) -> ModelSpec:
    """The spec of a checkpoint; see `Family.spec_from_config`."""
    return family_of_config(config, path).spec_from_config(config, path, names, pooling)


def family_of_spec(spec: ModelSpec, source: object) -> ExportableFamily:
    """The family in whose form a model can be exportable. Raises InputError where none has all its towers."""
    exportable = [family for family in FAMILIES.values() if isinstance(family, ExportableFamily)]

    def family_of(*towers: Any) -> ExportableFamily | None:
        return next((family for family in exportable if family.has_towers(*towers)), None)

    family = family_of(spec.vision, spec.text)
    if family is None:
        alone = [family_of(tower) for tower in (spec.vision, spec.text) if tower is not None]
        names = " beside ".join(f"a {family.name} tower" if family else "a tower of no family" for family in alone)
        raise InputError(source, "towers", names, "towers of one family that transformers has: clip, siglip or tipsv2")
    return family
