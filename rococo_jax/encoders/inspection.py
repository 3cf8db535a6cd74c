"""Report a model's origin, architecture and cost, and warn of known pitfalls."""

from typing import Any

from rococo_jax.checkpoints.families import FAMILIES
from rococo_jax.checkpoints.formats.activation import activation_hint
from rococo_jax.checkpoints.parameters import before_training
from rococo_jax.models import parameter_counts
from rococo_jax.models.flops import image_flops, matching_flops, text_flops

# Embedding tables are padded by a few per cent. A tokenizer that fills less than half of one probably belongs to
# another model.
_MIN_VOCABULARY_SHARE = 0.5


def inspect_model(encoder: Any) -> dict[str, Any]:
    """Return facts about a model as JSON.

    The keys are `name`, `provenance`, `weights_sha256`, `embedding_dimensions`, `parameters`, `flops`, `spec`, `rules`,
    `preprocessing`, `tokenizer` and `warnings`. `flops` is for one image, for one text of the tokenizer's context
    length, and with a matching head for one pair of them (`pair`, in addition to both); a multiply-add counts as two.
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
    is_single_tower = spec.vision is None or spec.text is None
    counts = parameter_counts(spec)
    if is_single_tower:
        counts = {part: count for part, count in counts.items() if part != "logits"}
    return {
        "name": encoder.name,
        "provenance": encoder.provenance,
        # Computed from the loaded weights, not read from the files.
        "weights_sha256": encoder.weights_sha256,
        "embedding_dimensions": spec.dim,
        "parameters": {**counts, "total": sum(counts.values())},
        "flops": flops,
        "spec": spec.to_json(),
        "rules": library_settings(encoder),
        "preprocessing": encoder.preprocessing and encoder.preprocessing.to_json(),
        "tokenizer": tokenizer and {**tokenizer.spec.to_json(), "vocabulary_size": tokenizer.rust.get_vocab_size()},
        "warnings": warnings_of(encoder),
    }


def library_settings(encoder: Any) -> dict[str, dict[str, Any]]:
    """Return each setting of the source library that decides embeddings: its `value`, and its source (`from`)."""
    spec, pixels, tokenizer = encoder.spec, encoder.preprocessing, encoder.tokenizer
    sources = dict(before_training(encoder.provenance).get("read_from", {}))
    values: dict[str, Any] = {}
    for kind, tower in (("image", spec.vision), ("text", spec.text)):
        fields = {f"{kind} {name}": getattr(tower, name, None) for name in ("activation", "heads", "pooling")}
        values |= {setting: value for setting, value in fields.items() if value is not None}
        rare_fields = [name for name in getattr(tower, "non_default_optional", ()) if name != "position_rule"]
        values |= {f"{kind} {name}": tower.to_json()[name] for name in rare_fields}
        sources |= dict.fromkeys((f"{kind} {name}" for name in rare_fields), "the tower's kind")
    if spec.vision is not None:
        values["image size"] = spec.vision.image_size
        if grid := spec.vision.position_grid:
            values["positions"] = f"{grid} x {grid}, interpolated: {spec.vision.position_rule}"
            sources["positions"] = "the library's rule"
    if pixels is not None:
        values["resize"] = pixels.describe_size()
        values["crop"] = "none" if pixels.crop_size is None else "centre {} x {}, after it".format(*pixels.crop_size)
        values |= {"interpolation": pixels.resample, "rescale factor": pixels.rescale_factor}
        values |= {"mean": list(pixels.mean), "std": list(pixels.std), "colours": pixels.describe_library_behaviour()}
        sources["colours"] = "the library's rule"
    if tokenizer is not None:
        tokenizer_spec, special_ids = tokenizer.spec, tokenizer.encode([""])[0]
        values["cleaning"] = tokenizer_spec.cleaning
        values["lower case"] = _lowers_case(tokenizer)
        values["text length"] = tokenizer_spec.context_length
        values["padding id"] = tokenizer_spec.pad_id
        if special_ids:
            values["end id"] = tokenizer_spec.eos_id
        if special_ids and special_ids[0] != tokenizer_spec.eos_id:
            values["start id"] = special_ids[0]
    default = sources.get("other", "model.json")
    return {setting: {"value": value, "from": sources.get(setting, default)} for setting, value in values.items()}


def _lowers_case(tokenizer: Any) -> bool:
    return tokenizer.encode(["A Dog on the Grass."]) == tokenizer.encode(["a dog on the grass."])


def warnings_of(encoder: Any) -> list[str]:
    """Return warnings of known pitfalls; empty for a model without any."""
    warnings = _activation_warnings(encoder)
    if encoder.spec.vision is not None:
        warnings += _image_warnings(encoder)
    if encoder.spec.text is not None:
        warnings += _text_warnings(encoder)
    if code := encoder.provenance.get("own_code"):
        warnings.append(f"code: the repository has its own ({code}); it is read as a plain model of this family")
    stored = encoder.provenance.get("weights_sha256")
    if stored is not None and stored != encoder.weights_sha256:
        warnings.append("weights: their hash differs from the recorded one; they have changed since")
    return warnings


def _activation_warnings(encoder: Any) -> list[str]:
    source, spec = encoder.provenance.get("source"), encoder.spec
    hint = activation_hint(source) if source is not None else None
    training_activation = hint[0] if hint is not None else None
    towers = {"image": spec.vision, "text": spec.text}
    warnings = []
    for kind, tower in towers.items():
        activation = getattr(tower, "activation", None)
        if training_activation is None or activation not in ("quick_gelu", "gelu"):
            continue
        if activation != training_activation:
            trained_with = f"{source} was trained with {training_activation}"
            warnings.append(f"activation: the {kind} tower has {activation}, and {trained_with}")
    setting_sources = encoder.provenance.get("read_from", {}).values()
    for name in ("activation", "heads"):
        if f"the argument {name}" in setting_sources:
            warnings.append(f"{name}: given by hand, nothing in the checkpoint confirms it")
    return warnings


def _image_warnings(encoder: Any) -> list[str]:
    vision, preprocessing, warnings = encoder.spec.vision, encoder.preprocessing, []
    if preprocessing is None:
        return ["image size: the model has no preprocessing, so only pixels can be encoded"]
    if preprocessing.image_size != (vision.image_size, vision.image_size):
        size = " x ".join(map(str, preprocessing.image_size))
        warnings.append(
            f"image size: images are made {size}, the tower reads {vision.image_size} x {vision.image_size}"
        )
    if vision.position_grid is not None and not vision.flexible_grid:
        warnings.append(
            f"image size: positions were trained for {vision.position_grid} x {vision.position_grid} patches and are "
            f"interpolated to {vision.grid} x {vision.grid}"
        )
    if border := vision.border_pixels:
        warnings.append(f"image size: {border} pixels at the right and bottom fill no patch and are ignored")
    sources = encoder.provenance.get("read_from", {})
    defaults = {sources.get(setting, "") for setting in ("resize", "interpolation", "mean", "std")}
    if len(defaults) == 1 and "default" in (default := defaults.pop()):
        warnings.append(f"preprocessing: the checkpoint has no file for it; it is {default}")
    return warnings


def _text_warnings(encoder: Any) -> list[str]:
    text, tokenizer, warnings = encoder.spec.text, encoder.tokenizer, []
    if tokenizer is None:
        return ["tokenizer: the model has none, so only token ids can be encoded"]
    spec, size = tokenizer.spec, tokenizer.rust.get_vocab_size()
    if text.pooling == "first_eos" and spec.eos_id != text.eos_id:
        warnings.append(
            f"end of text: the tokenizer ends texts with id {spec.eos_id}, the tower pools at {text.eos_id}"
        )
    if text.pooling == "highest_id" and spec.eos_id != size - 1:
        warnings.append(
            f"end of text: the tower pools at the highest id, the tokenizer ends with {spec.eos_id} of {size}"
        )
    if size < text.vocabulary_size * _MIN_VOCABULARY_SHARE:
        warnings.append(
            f"vocabulary: {size} ids in the tokenizer for {text.vocabulary_size} words of the tower: it may not be the "
            "tokenizer of the training"
        )
    if size > text.vocabulary_size:
        warnings.append(f"vocabulary: {size} ids in the tokenizer, {text.vocabulary_size} words in the tower")
    if spec.context_length > text.context_length:
        warnings.append(f"length: texts of {spec.context_length} tokens for a tower of {text.context_length}")
    if text.attention == "full" and spec.fixed_length != text.context_length:
        warnings.append(f"length: the tower reads {text.context_length} tokens always, texts are {spec.fixed_length}")
    if text.pooling == "appended":
        warnings.append(
            f"padding: the embedding of a text depends on one padding token after it, id {text.pad_id}, as in the "
            "published weights (their mask is shifted by one token)"
        )
    lowers_case = _lowers_case(tokenizer)
    family = FAMILIES.get(spec.family)
    if not lowers_case and family is not None and family.lower_case:
        warnings.append(f"lower-casing: the tokenizer keeps capitals, and {spec.family} was trained on lower case")
    elif not lowers_case:
        warnings.append(
            "lower-casing: capitals change the tokens; altered captions may differ from originals only in case"
        )
    return warnings
