"""Published retrieval figures of known checkpoints, to tell that an evaluation reproduces them, or why it may not.

They are of the 5,000 images of COCO's Karpathy test split with five captions each, so only a result on all of these is
compared. The table is made by `tools/build_known_figures.py` and names its source.
"""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = "rococo_jax.known_figures 1"
FIGURES = Path(__file__).parent / "assets" / "known_figures.json"
COLUMNS = tuple(f"{task}_{name}" for task in ("image_to_text", "text_to_image") for name in ("r1", "r5", "r10"))
IMAGES = 5000
# In points: another resizing of images or a sixth caption of ten images moves a recall by less.
CLOSE = 0.3
_USUAL = (
    "the activation (QuickGELU or GELU), the preprocessing (crop or squash, filter), bfloat16, one caption an image "
    "instead of five, another split"
)


@functools.cache
def _table() -> tuple[str, dict[str, dict[str, float]]]:
    """Source of the figures, and those of each name in lower case."""
    value = json.loads(FIGURES.read_text(encoding="utf-8"))
    known: dict[str, dict[str, float]] = {}
    for names, figures in value["rows"]:
        known |= {name.lower(): dict(zip(value["columns"], figures, strict=True)) for name in names}
    return value["source"], known


def known_figures(about: Mapping[str, Any]) -> dict[str, float] | None:
    """The figures of a checkpoint by `TASK_METRIC`, in percent; None where it is not known, or was trained on.

    `about` is what a result holds of its model: `provenance` and `weights_sha256`.
    """
    provenance = about.get("provenance") or {}
    if provenance.get("weights_sha256") != about.get("weights_sha256") or "format" not in provenance:
        return None
    source = str(provenance.get("source", "")).removeprefix("hf-hub:").rstrip("/")
    names = ["/".join(source.split("/")[-2:])]
    if provenance["format"] == "openai":  # the archive's hash is one of OpenAI's
        names = ["openai:" + re.sub("@([0-9]+)px", r"-\1", str(provenance.get("model_type")).replace("/", "-"))]
    known = _table()[1]
    return next((known[name.lower()] for name in names if name.lower() in known), None)


def compare_with_published(results: Mapping[str, Any]) -> list[str]:
    """Lines for people: each recall beside the published one, and what usually explains a difference.

    Empty for a model that is not known, or a result on other images than all of the Karpathy test split.
    """
    about = results.get("about") or {}
    known = known_figures(about)
    if known is None:
        return []
    tasks = {"image_to_text": "image to text", "text_to_image": "text to image"}
    found, far = [], 0.0
    for task, words in tasks.items():
        metrics = results["tasks"].get(task, {}).get("clean")
        if metrics is None or results["sizes"][task]["clean"].get("images") != IMAGES:
            continue
        pairs = []
        for name, label in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10")):
            if (value := metrics.get(name)) is not None:
                published = known[f"{task}_{name}"]
                far = max(far, abs(value - published))
                pairs.append(f"{label} {value:.1f}, published {published:.1f}")
        found.append(f"{words}: {'; '.join(pairs)}")
    if not found:
        return []
    verdict = (
        f"as published, within {CLOSE} points" if far <= CLOSE else f"up to {far:.1f} points away; {_reasons(results)}"
    )
    return [f"{line} ({_table()[0]})" for line in found] + [verdict]


def _reasons(results: Mapping[str, Any]) -> str:
    """Differences of this very result from the published way, else the usual ones."""
    about, model, found = results["about"], results["fingerprint"].get("model", {}), []
    if results["protocol"] != "paper":
        found.append(f"the protocol is {results['protocol']}, which changes captions and counts ties against the model")
    if model.get("dtype") == "bfloat16":
        found.append("the towers ran in bfloat16")
    found += [warning for warning in about.get("warnings", ()) if warning.startswith(("activation", "image", "prep"))]
    queries = results["sizes"].get("text_to_image", {}).get("clean", {}).get("queries")
    if queries is not None and queries < 5 * IMAGES:
        found.append(f"{queries:,} captions instead of five for each image")
    return f"here {'; '.join(found)}" if found else f"usual reasons are {_USUAL}"
