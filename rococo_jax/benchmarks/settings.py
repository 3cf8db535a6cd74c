"""What an evaluation asks for, apart from the models and the data."""

import dataclasses
from collections.abc import Sequence

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.perturb.images.corruptions import check_severity, find_corruption

PROTOCOLS = ("paper", "strict")
CONTROL = "control"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The questions of an evaluation.

    Attributes:
        protocol: `paper`, the published files and ways; or `strict`, ties and oddities of the data count against the
            model.
        tasks: names of tasks; all of a benchmark's by default.
        mixed_galleries: of text-to-image retrieval: `mix_R` and `patch_R` with a ratio R, or `control` alone.
        seeds: of the mixing; a mixed variant is the mean over them.
        corruptions: kinds of ImageNet-C; empty for none.
        severities: of the corruptions, 1 to 5.
        corrupted_benchmarks: those whose images are corrupted; all by default.
        templates: of prompts for classes: how many of ours (1, 5, 30, 80), or files; all but the first are further
            variants.
        out_images: (name, folder) of images that show none of a benchmark's classes, which its images are told from.
        rerank: how many gallery items of every query the model's matching head judges anew; 0 for none.
        allow_missing_images: leave out images that have no file, with a note, instead of refusing.
        limit: only the first images of each benchmark, for a trial; 0 for all.
        require_clean: refuse a model that was trained on images of a benchmark, or that does not tell its own.

    Raises:
        InputError: a name is unknown (the nearest is suggested), or a number is out of its range.
    """

    protocol: str = "paper"
    tasks: tuple[str, ...] = ()
    mixed_galleries: tuple[str, ...] = ("mix_0.9", "patch_0.9")
    seeds: tuple[int, ...] = (1, 10, 100)
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 3, 5)
    corrupted_benchmarks: tuple[str, ...] = ()
    templates: tuple[str, ...] = ("80",)
    out_images: tuple[tuple[str, str], ...] = ()
    rerank: int = 0
    allow_missing_images: bool = False
    limit: int = 0
    require_clean: bool = False

    def __post_init__(self):
        check_known("protocol", [self.protocol], PROTOCOLS)
        if not self.seeds or not all(0 <= seed < 2**32 for seed in self.seeds):
            raise InputError("settings", "seeds", list(self.seeds), "whole numbers from 0 to 4294967295, at least one")
        for kind in self.corruptions:
            find_corruption(kind)
        for severity in self.severities:
            check_severity(severity)
        if self.corrupted_benchmarks and not self.corruptions:
            found = f"{', '.join(self.corrupted_benchmarks)}, but no corruptions"
            raise InputError("settings", "corrupted_benchmarks", found, "the kinds of corruption, too")
        for name in ("rerank", "limit"):
            if getattr(self, name) < 0:
                raise InputError("settings", name, getattr(self, name), "0 for none, or a whole number above it")

    def corruptions_of(self, benchmark: str) -> tuple[str, ...]:
        """The kinds that a benchmark's images are corrupted by."""
        return self.corruptions if benchmark in (self.corrupted_benchmarks or (benchmark,)) else ()

    def wants(self, task: str) -> bool:
        """Whether a task is asked for."""
        return not self.tasks or task in self.tasks


def check_known(field: str, names: Sequence[str], known: Sequence[str], source: str = "settings") -> None:
    """Raises InputError, which suggests the nearest, where a name is none of `known`."""
    for name in names:
        if name not in known:
            raise unknown_name(source, field, name, known, "rococo benchmarks")
