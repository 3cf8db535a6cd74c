"""Find the activation of a CLIP: QuickGELU or GELU. Nothing in the weights records it, and the wrong one runs as well.

Sources, in this order: the caller, the configuration, timm's towers that were never trained with QuickGELU, and the
name of the repository in open_clip's table of published models.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.checkpoints.formats.timm_towers import find_timm_tower
from rococo_jax.checkpoints.parameters import missing_choice
from rococo_jax.checkpoints.zoo import activations_by_repository
from rococo_jax.errors import InputError
from rococo_jax.models.spec import Activation

ACTIVATIONS = ("quick_gelu", "gelu")


def activation_of_open_clip(
    model_config: Mapping[str, Any], source: object, requested: str | None
) -> tuple[Activation, str]:
    """Return the activation of open_clip's own towers, and where it was read.

    `model_config` is `model_cfg` together with the other keys of the file, such as `pretrained_cfg`. Raises InputError
    if neither the configuration nor the name of the checkpoint records the activation and the caller has not given it.
    """
    if requested is not None:
        return requested, "the argument activation"
    for key in ("quick_gelu", "force_quick_gelu"):
        if model_config.get(key) is not None:  # open_clip takes a text such as "TRUE" for true
            return ("quick_gelu" if model_config[key] else "gelu"), f"open_clip_config.json: {key}"
    timm_name = str(model_config.get("vision_cfg", {}).get("timm_model_name"))
    if "_siglip" in timm_name:
        return "gelu", "SigLIP, never trained with QuickGELU"
    known_tower = find_timm_tower(timm_name)
    if known_tower is not None and not known_tower[0].quick_gelu:
        return "gelu", f"beside {timm_name}, never trained with QuickGELU"
    pretrained = model_config.get("pretrained_cfg")
    if isinstance(pretrained, Mapping) and isinstance(pretrained.get("quick_gelu"), bool):
        activation = "quick_gelu" if pretrained["quick_gelu"] else "gelu"
        return activation, "open_clip_config.json: pretrained_cfg.quick_gelu"
    if (hint := activation_hint(source)) is not None:
        return hint
    raise _unknown_activation(source, "neither quick_gelu in the configuration nor the name of a published model")


def activation_hint(source: object) -> tuple[Activation, str] | None:
    """Return the activation that the name of a checkpoint implies, and why; None for other names.

    The name is the last part of a path or hub name. It is a published model of open_clip, or contains `quickgelu`.

    >>> activation_hint("laion/CLIP-ViT-B-32-laion2B-s34B-b79K")
    ('gelu', "'CLIP-ViT-B-32-laion2B-s34B-b79K' in open_clip's table of published models")
    """
    name = _own_name(source)
    if (activation := activations_by_repository().get(name.lower())) is not None:
        return activation, f"{name!r} in open_clip's table of published models"
    if match := re.search("quick[-_ ]?gelu", name, re.IGNORECASE):
        return "quick_gelu", f"{match[0]!r} in the name"
    return None


def _own_name(source: object) -> str:
    """Return the last part of a path or hub name; the repository's name for a snapshot in the hub's cache."""
    path = Path(str(source))
    parts = (path.resolve() if path.exists() else path).parts
    in_snapshot = len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--")
    if in_snapshot:
        return parts[-3].rpartition("--")[2]
    return parts[-1].partition("@")[0] if parts else ""


def activation_of_openai(source: object, requested: str | None, origin: str | None) -> tuple[Activation, str]:
    """Return the activation of weights under OpenAI's names, and where it was read.

    `origin` says why the file is one of OpenAI's, all of which have QuickGELU; it is None for a bare state dict, which
    open_clip writes under the same names. Raises InputError for that if the caller has not given the activation.
    """
    if requested is not None:
        return requested, "the argument activation"
    if origin is not None:
        return "quick_gelu", origin
    raise _unknown_activation(source, "a bare state dict, which OpenAI's code and open_clip write under the same names")


def _unknown_activation(source: object, problem: str) -> InputError:
    expected = (
        f"{' or '.join(ACTIVATIONS)}: quick_gelu for models that were trained with force_quick_gelu, in a '-quickgelu' "
        "architecture, or from OpenAI's weights; else gelu. Both run, one of them gives wrong embeddings, and the "
        "weights do not record which"
    )
    return missing_choice(source, "activation", problem, expected)
