"""Facts about a model: origin, architecture, cost, and warnings of known pitfalls."""

from typing import Any

from rococo_jax.checkpoints.families import FAMILIES
from rococo_jax.checkpoints.formats.activation import activation_hint
from rococo_jax.checkpoints.parameters import before_training
from rococo_jax.models import parameter_counts
from rococo_jax.models.flops import image_flops, matching_flops, text_flops

# Tables are padded by some per cent; a tokenizer that fills less than half of one is most likely another model's.
_LEAST_OF_VOCABULARY = 0.5


def inspect_model(encoder: Any) -> dict[str, Any]:
    """A JSON value: `name`, `provenance`, `weights_sha256`, `embedding_dimensions`, `parameters`, `flops`, `spec`,
    `rules`, `preprocessing`, `tokenizer`, `warnings`.

    `flops` is of one image, of one text of the tokenizer's context length, and where there is a matching head of one
    pair of them (`pair`), beside both; a product and a sum count as two.
    """
    spec, tokenizer = encoder.spec, encoder.tokenizer
    flops: dict[str, int] = {}
    if spec.vision is not None:
        flops["image"] = image_flops(spec, pixels=encoder.preprocessing and encoder.preprocessing.pixel_shape)
    if spec.text is not None:
        flops["text_tokens"] = tokenizer.spec.context_length if tokenizer else spec.text.context_length
        flops["text"] = text_flops(spec, flops["text_tokens"])
    if spec.matching is not None:
        flops["pair"] = matching_flops(spec, flops["text_tokens"])
    single = spec.vision is None or spec.text is None
    counts = {part: count for part, count in parameter_counts(spec).items() if not (single and part == "logits")}
    return {
        "name": encoder.name,
        "provenance": encoder.provenance,
        # Computed from the loaded weights, not copied from the files.
        "weights_sha256": encoder.weights_sha256,
        "embedding_dimensions": spec.dim,
        "parameters": {**counts, "total": sum(counts.values())},
        "flops": flops,
        "spec": spec.to_json(),
        "rules": rules_of(encoder),
        "preprocessing": encoder.preprocessing and encoder.preprocessing.to_json(),
        "tokenizer": tokenizer and {**tokenizer.spec.to_json(), "vocabulary_size": tokenizer.rust.get_vocab_size()},
        "warnings": warnings_of(encoder),
    }


def rules_of(encoder: Any) -> dict[str, dict[str, Any]]:
    """Each rule of the source library that decides vectors: its `value`, and `from`, where it was read."""
    spec, pixels, tokenizer = encoder.spec, encoder.preprocessing, encoder.tokenizer
    places = dict(before_training(encoder.provenance).get("read_from", {}))
    values: dict[str, Any] = {}
    for kind, tower in (("image", spec.vision), ("text", spec.text)):
        fields = {f"{kind} {name}": getattr(tower, name, None) for name in ("activation", "heads", "pooling")}
        values |= {rule: value for rule, value in fields.items() if value is not None}
        rare = [name for name in getattr(tower, "non_default_optional", ()) if name != "position_rule"]
        values |= {f"{kind} {name}": tower.to_json()[name] for name in rare}
        places |= dict.fromkeys((f"{kind} {name}" for name in rare), "the tower's kind")
    if spec.vision is not None:
        values["image size"] = spec.vision.image_size
        if stored := spec.vision.position_grid:
            values["positions"] = f"{stored} x {stored}, interpolated: {spec.vision.position_rule}"
            places["positions"] = "the library's rule"
    if pixels is not None:
        values["resize"] = pixels.describe_size()
        values["crop"] = "none" if pixels.crop_size is None else "centre {} x {}, after it".format(*pixels.crop_size)
        values |= {"interpolation": pixels.resample, "rescale factor": pixels.rescale_factor}
        values |= {"mean": list(pixels.mean), "std": list(pixels.std), "colours": pixels.describe_library_behaviour()}
        places["colours"] = "the library's rule"
    if tokenizer is not None:
        of, ends = tokenizer.spec, tokenizer.encode([""])[0]
        values |= {"cleaning": of.cleaning, "lower case": _lowers_case(tokenizer), "text length": of.context_length}
        values |= {"padding id": of.pad_id} | ({"end id": of.eos_id} if ends else {})
        values |= {"start id": ends[0]} if ends and ends[0] != of.eos_id else {}
    other = places.get("other", "model.json")
    return {rule: {"value": value, "from": places.get(rule, other)} for rule, value in values.items()}


def _lowers_case(tokenizer: Any) -> bool:
    return tokenizer.encode(["A Dog on the Grass."]) == tokenizer.encode(["a dog on the grass."])


def warnings_of(encoder: Any) -> list[str]:
    """Warnings of known pitfalls; empty for a model without any."""
    found = _activation_warnings(encoder)
    if encoder.spec.vision is not None:
        found += _image_warnings(encoder)
    if encoder.spec.text is not None:
        found += _text_warnings(encoder)
    stored = encoder.provenance.get("weights_sha256")
    if stored is not None and stored != encoder.weights_sha256:
        found.append("weights: their hash is not the one that was written down; they were changed since")
    return found


def _activation_warnings(encoder: Any) -> list[str]:
    source, spec = encoder.provenance.get("source"), encoder.spec
    hint = activation_hint(source) if source is not None else None
    known = hint[0] if hint is not None else None
    towers = {"image": spec.vision, "text": spec.text}
    found = []
    for kind, tower in towers.items():
        activation = getattr(tower, "activation", None)
        if known is not None and activation in ("quick_gelu", "gelu") and activation != known:
            found.append(f"activation: the {kind} tower has {activation}, and {source} was trained with {known}")
    given = encoder.provenance.get("read_from", {}).values()
    for name in ("activation", "heads"):
        if f"the argument {name}" in given:
            found.append(f"{name}: given by hand, nothing in the checkpoint confirms it")
    return found


def _image_warnings(encoder: Any) -> list[str]:
    vision, preprocessing, found = encoder.spec.vision, encoder.preprocessing, []
    if preprocessing is None:
        return ["image size: nothing says how images become pixels"]
    if preprocessing.image_size != (vision.image_size, vision.image_size):
        made = " x ".join(map(str, preprocessing.image_size))
        found.append(f"image size: images are made {made}, the tower reads {vision.image_size} x {vision.image_size}")
    if vision.position_grid is not None and not vision.flexible_grid:
        found.append(
            f"image size: positions were trained for {vision.position_grid} x {vision.position_grid} patches and are "
            f"interpolated to {vision.grid} x {vision.grid}"
        )
    if left := vision.border_pixels:
        found.append(f"image size: {left} pixels at the right and bottom fill no patch and are not seen")
    places = encoder.provenance.get("read_from", {})
    defaults = {places.get(rule, "") for rule in ("resize", "interpolation", "mean", "std")}
    if len(defaults) == 1 and "default" in (default := defaults.pop()):
        found.append(f"preprocessing: the checkpoint has no file for it; it is {default}")
    return found


def _text_warnings(encoder: Any) -> list[str]:
    text, tokenizer, found = encoder.spec.text, encoder.tokenizer, []
    if tokenizer is None:
        return ["tokenizer: none came with the model, it reads token ids only"]
    spec, size = tokenizer.spec, tokenizer.rust.get_vocab_size()
    if text.pooling == "first_eos" and spec.eos_id != text.eos_id:
        found.append(f"end of text: the tokenizer ends texts with id {spec.eos_id}, the tower pools at {text.eos_id}")
    if text.pooling == "highest_id" and spec.eos_id != size - 1:
        found.append(f"end of text: the tower pools at the highest id, the tokenizer ends with {spec.eos_id} of {size}")
    if size < text.vocabulary_size * _LEAST_OF_VOCABULARY:
        found.append(
            f"vocabulary: {size} ids in the tokenizer for {text.vocabulary_size} words of the tower: it may not be the "
            "one that the tower was trained with"
        )
    if size > text.vocabulary_size:
        found.append(f"vocabulary: {size} ids in the tokenizer, {text.vocabulary_size} words in the tower")
    if spec.context_length > text.context_length:
        found.append(f"length: texts of {spec.context_length} tokens for a tower of {text.context_length}")
    if text.attention == "full" and spec.fixed_length != text.context_length:
        found.append(f"length: the tower reads {text.context_length} tokens always, texts are {spec.fixed_length}")
    if text.pooling == "appended":
        found.append(
            f"padding: the vector of a text takes in one token of padding after it, id {text.pad_id}, as the published "
            "weights do (their mask is one place off)"
        )
    lower = _lowers_case(tokenizer)
    family = FAMILIES.get(spec.family)
    if not lower and family is not None and family.lower_case:
        found.append(f"lower-casing: the tokenizer keeps capitals, and {spec.family} was trained on lower case")
    elif not lower:
        found.append("lower-casing: capitals change the tokens; altered captions may differ from theirs in case alone")
    return found
