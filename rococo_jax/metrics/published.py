"""Published results of known checkpoints, which an evaluation prints next to its own.

`assets/published.csv` has a line for each checkpoint, variant and source: names, percentages, source. It is made by
`tools/build_published.py`. All are for the 5,000 images of COCO's Karpathy test split, so only results on all of these
are compared.
"""

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PUBLISHED_VALUES = Path(__file__).parent / "assets" / "published.csv"
IMAGES = 5000
# In points: another resizing of images or a sixth caption of ten images moves a recall by less.
CLOSE = 0.3
LABELS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "fr1": "FR@1"}
_USUAL = (
    "the activation (QuickGELU or GELU), the preprocessing (crop or resize to a square, filter), bfloat16, one "
    "caption per image instead of five, another split"
)


def published_values(about: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the lines of a checkpoint; none if it is unknown or was trained further.

    `about` is the part of a result about its model, with `provenance` and `weights_sha256`.
    """
    provenance = about.get("provenance") or {}
    if provenance.get("weights_sha256") != about.get("weights_sha256") or "format" not in provenance:
        return []
    name = "/".join(str(provenance.get("source", "")).removeprefix("hf-hub:").rstrip("/").split("/")[-2:])
    if provenance["format"] == "openai":  # the archive's hash is one of OpenAI's
        name = "openai:" + re.sub("@([0-9]+)px", r"-\1", str(provenance.get("model_type")).replace("/", "-"))
    with PUBLISHED_VALUES.open(encoding="utf-8", newline="") as file:
        return [line for line in csv.DictReader(file) if name.lower() in line["names"].lower().split()]


def compare_with_published(results: Mapping[str, Any]) -> list[str]:
    """Return lines with results next to the published ones, and usual reasons for a difference.

    Empty for an unknown model, or a result that is not on the complete Karpathy test split.
    """
    lines = []
    for published in published_values(results.get("about") or {}):
        task, variant = published["task"], published["variant"]
        values = results["tasks"].get(task, {}).get(variant, {})
        names = [name for name in LABELS if published[name] and values.get(name) is not None]
        if names and results["sizes"][task][variant].get("images") == IMAGES:
            pairs = [f"{LABELS[name]} {values[name]:.1f}, published {float(published[name]):.1f}" for name in names]
            away = max(abs(values[name] - float(published[name])) for name in names)
            verdict = (
                f"within {CLOSE} points" if away <= CLOSE else f"up to {away:.1f} points away; {_reasons(results)}"
            )
            lines.append(f"{task}, {variant}: {'; '.join(pairs)} ({published['source']}): {verdict}")
    return lines


def _reasons(results: Mapping[str, Any]) -> str:
    """Return differences of this result from the published protocol, else the usual ones."""
    about, model, reasons = results["about"], results["fingerprint"].get("model", {}), []
    if results["protocol"] != "paper":
        reasons.append(
            f"the protocol is {results['protocol']}, which changes captions and counts ties against the model"
        )
    if model.get("dtype") == "bfloat16":
        reasons.append("the towers ran in bfloat16")
    reasons += [warning for warning in about.get("warnings", ()) if warning.startswith(("activation", "image", "prep"))]
    queries = results["sizes"].get("text_to_image", {}).get("clean", {}).get("queries")
    if queries is not None and queries < 5 * IMAGES:
        reasons.append(f"{queries:,} captions instead of five for each image")
    return f"here {'; '.join(reasons)}" if reasons else f"usual reasons are {_USUAL}"
