"""`rococo inspect`: print facts about a model."""

import dataclasses
from typing import Annotated, Any

from rococo_jax.evaluation.options import SourceOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo inspect models/clip_b32
  rococo inspect RN50.pt --tokenizer tokenizers/clip --json
  rococo inspect zoo:                     the names of published fine-tunes
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Print the origin, architecture and cost of a model, and warnings of known pitfalls.

    Attributes:
        model: model directory, checkpoint, or hub name
        json: print everything as one JSON object
        how: settings of the checkpoint
    """

    model: Annotated[str, Option("MODEL", positional=True)]
    json: bool = False
    how: SourceOptions


def run(options: Options) -> None:
    import json

    import jax

    from rococo_jax.encoders import load_model
    from rococo_jax.encoders.inspection import inspect_model
    from rococo_jax.runtime import make_mesh

    encoder = load_model(options.model, mesh=make_mesh(jax.devices()[:1]), **vars(options.how))
    facts = inspect_model(encoder)
    if options.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    print("\n".join(describe_facts(encoder, facts)))


def describe_facts(encoder: Any, facts: dict[str, Any]) -> list[str]:
    """Return the facts of `inspect_model` as lines of text."""
    spec, counts, flops = encoder.spec, facts["parameters"], facts["flops"]
    lines = [facts["name"]]
    origin = facts["provenance"].items()
    lines += [f"  {key.replace('_', ' '):<16}{_short(value)}" for key, value in origin if key != "read_from"]
    if "weights_sha256" not in facts["provenance"]:
        lines.append(f"  {'weights sha256':<16}{facts['weights_sha256']}")
    if spec.vision is not None:
        vision = spec.vision
        size = f"{vision.image_size} x {vision.image_size}, patches of {vision.patch_size}"
        lines.append(f"images          {describe_tower(vision)}; {size}")
        lines.append(f"                {flops['image'] / 1e9:.3g} GFLOP an image")
    if spec.text is not None:
        text = spec.text
        words = f"vocabulary of {text.vocabulary_size:,}, up to {text.context_length} tokens"
        lines.append(f"texts           {describe_tower(text)}; {words}")
        lines.append(f"                {flops['text'] / 1e9:.3g} GFLOP a text of {flops['text_tokens']} tokens")
    if spec.matching is not None:
        first = "" if spec.matching.first_id is None else f"; texts begin with id {spec.matching.first_id} for it"
        lines.append(f"matching        a head that scores pairs, for `rococo evaluate --rerank`{first}")
        lines.append(f"                {flops['pair'] / 1e9:.3g} GFLOP a pair of an image and such a text")
    parts = ", ".join(f"{part.replace('_', ' ')} {count:,}" for part, count in counts.items() if part != "total")
    lines.append(f"parameters      {counts['total']:,}: {parts}")
    lines.append("settings, and where they were read")
    for name, setting in facts["rules"].items():
        lines.append(f"  {name.replace('_', ' '):<21} {setting['value']} ({setting['from']})")
    lines.append(f"embeddings      {facts['embedding_dimensions']} dimensions")
    lines += [f"warning         {warning}" for warning in facts["warnings"]]
    return lines if facts["warnings"] else [*lines, "no warnings"]


def _short(value: Any) -> str:
    """Return one line for a value, which may be the complete record of an earlier step."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items() if not isinstance(item, dict | list))
    return str(value)


def describe_tower(tower) -> str:
    """Return depth, width, activation and pooling of an image or text tower in words."""
    stages = getattr(tower, "stage_layers", None)
    if stages is not None:
        widths = getattr(tower, "widths", None)
        wide = "-".join(map(str, widths)) if widths else tower.width
        kind, article = tower.architecture, "an" if tower.architecture[0] in "AEIOU" else "a"
        return f"{article} {kind} of {'-'.join(map(str, stages))} blocks, {wide} wide, pooling {tower.pooling}"
    activation = f"gated {tower.activation}" if getattr(tower, "gated_mlp", False) else tower.activation
    return f"{tower.layers} layers of {tower.width}, {activation}, pooling {tower.pooling}"
