"""What an evaluation is asked to do, apart from the models and the data."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

from rococo_jax.benchmarks.altered_images import DEFAULT_MIXES, DEFAULT_SEEDS, parse_mix
from rococo_jax.benchmarks.rococo.build import PROTOCOLS
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.corruptions import check_severity, find_corruption

TASKS = (IMAGE_TO_TEXT, TEXT_TO_IMAGE)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The questions of an evaluation.

    Attributes:
        protocol: `paper`, `strict` or `control`.
        tasks: `image_to_text`, `text_to_image`.
        mixes: mixed galleries of text-to-image, such as `mix_0.9`; empty for none.
        seeds: of the mixing; a mixed variant is the mean over them.
        corruptions: kinds of ImageNet-C; empty for none.
        severities: of the corruptions, 1 to 5.
        rerank: how many gallery items of every query the model's matching head judges anew; 0 for none.

    Raises:
        InputError: a name is unknown (the nearest is suggested), or a number is out of its range.
    """

    protocol: str = "paper"
    tasks: tuple[str, ...] = TASKS
    mixes: tuple[str, ...] = DEFAULT_MIXES
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 3, 5)
    rerank: int = 0

    def __post_init__(self):
        _check_known("--protocol", "protocol", [self.protocol], PROTOCOLS)
        _check_known("--tasks", "task", self.tasks, TASKS)
        for mix in self.mixes:
            parse_mix(mix)
        if not self.seeds or not all(0 <= seed < 2**32 for seed in self.seeds):
            raise InputError("--seeds", "seeds", list(self.seeds), "whole numbers from 0 to 4294967295, at least one")
        for kind in self.corruptions:
            find_corruption(kind)
        for severity in self.severities:
            check_severity(severity)
        if self.rerank < 0:
            raise InputError("--rerank", "gallery items", self.rerank, "0 for none, or a whole number above it")

    def fingerprint(self) -> dict[str, Any]:
        """What of the settings decides a result; the protocol stands beside it in a fingerprint."""
        mixing = {"mixes": list(self.mixes), "seeds": list(self.seeds)} if TEXT_TO_IMAGE in self.tasks else {}
        corrupting = {"corruptions": list(self.corruptions), "severities": list(self.severities)}
        asked = {"tasks": [task for task in TASKS if task in self.tasks], **mixing}
        return asked | (corrupting if self.corruptions else {}) | ({"rerank": self.rerank} if self.rerank else {})


def _check_known(option: str, what: str, names: Sequence[str], known: Sequence[str]) -> None:
    if not names:
        raise InputError(option, what, "none", f"at least one of {', '.join(known)}")
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InputError(option, what, name, f"one of {', '.join(known)}{hint}")
