"""One image as the evaluation corrupted it: a strip a kind, the severities side by side, the original first.

The rule: of each group (noise, blur, weather, digital) the kind that costs most R@1 at the highest severity, over all
models and tasks shown; of the images, the first of the run that is still to be had.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import UInt8

from rococo_jax.errors import InputError
from rococo_jax.perturb.images.corrupted_files import image_id, read_rgb
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.progress import progress
from rococo_jax.report.archive import Archive, small_jpeg
from rococo_jax.report.examples import PER_QUERY_FILE, read_image_order
from rococo_jax.report.markup import Markup, element, isolated
from rococo_jax.report.scores import Run
from rococo_jax.report.vocabulary import variant_label

_CORRUPTED_SIDE = 224  # px, to which the evaluation cuts images before it corrupts them
_SIDE = 168  # px on the page


def corrupted_strip(
    runs: Sequence[Run], names: Sequence[str], kinds: Sequence[str], severities: Sequence[int], archive: Archive
) -> Markup | None:
    """The figure; None where no image can be had."""
    found = _first_image(runs, archive)
    if found is None:
        return None
    name, pixels = found
    shown = _worst_of_each_group(runs, names, kinds, severities)
    with progress("corrupting an example", len(shown) * len(severities), "images") as advance:
        strips = [_strip(name, pixels, kind, severities, advance) for kind in shown]
    note = (
        "One image of the run as the model met it, in the kind of each group that costs most R@1 at the highest "
        "severity."
    )
    return element(
        "section",
        element("h4", "What it looks like"),
        element("p", note, " ", isolated(name), class_="note"),
        element("div", strips, class_="maps"),
        class_="figure",
    )


def _first_image(runs: Sequence[Run], archive: Archive) -> tuple[str, np.ndarray] | None:
    for run in runs:
        for name in read_image_order(run.path.parent / PER_QUERY_FILE)[:20]:
            path = archive.file(run.data, name)
            if path is not None and (pixels := _cut_square(path)) is not None:
                return name, pixels
    return None


def _cut_square(path: Path) -> np.ndarray | None:
    try:
        return read_rgb(path, _CORRUPTED_SIDE)
    except (InputError, OSError, ValueError):
        return None


def _worst_of_each_group(
    runs: Sequence[Run], names: Sequence[str], kinds: Sequence[str], severities: Sequence[int]
) -> list[str]:
    def cost(kind: str) -> float:
        drops = [run.figure(task, f"{kind}_{severities[-1]}", "drop").value for run in runs for task in names]
        drops = [drop for drop in drops if drop is not None]
        return sum(drops) / len(drops) if drops else -np.inf

    groups: dict[str, str] = {}
    for kind in kinds:
        group = CORRUPTIONS[kind].group
        if group not in groups or cost(kind) > cost(groups[group]):
            groups[group] = kind
    return list(groups.values())


def _strip(
    name: str, pixels: np.ndarray, kind: str, severities: Sequence[int], advance: Callable[[int], None]
) -> Markup:
    label, shown = variant_label(kind), [_picture(pixels, "Uncorrupted", name)]
    for severity in severities:
        corrupted = corrupted_as_measured(name, pixels, (kind, severity))
        shown.append(_picture(corrupted, f"Severity {severity}", f"{name}, {label}"))
        advance(1)
    return element("div", element("h5", label), element("div", shown, class_="strip"))


def corrupted_as_measured(
    name: str, pixels: UInt8[np.ndarray, "side side 3"], images: tuple[str, int]
) -> UInt8[np.ndarray, "side side 3"]:
    """One square image of the run under one corruption; what is random about it depends on its name and the seed."""
    ids, key = np.array([image_id(name)], np.int64), jax.random.key(0)
    return np.asarray(CORRUPTIONS[images[0]](pixels[None], images[1], key, ids=ids))[0]


def _picture(pixels: UInt8[np.ndarray, "side side 3"], label: str, told: str) -> Markup:
    small, told = small_jpeg(pixels, _SIDE), f"{told}, {label.lower()}"
    image = element("img", src=small.uri, width=small.width, height=small.height, alt=told, title=told)
    return element("figure", image, element("figcaption", label))
