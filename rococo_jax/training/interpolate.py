"""Models between two models: `(1 - w) A + w B` in every parameter (WiSE-FT, arXiv 2109.01903).

The logit scale is interpolated as it is stored, as a logarithm. Between models that were trained from one start the
loss is often no higher than at its ends, so that a weight chooses between the two without training.
"""

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.training.init import trained_encoder


def interpolated(first: Encoder, second: Encoder, weight: float) -> Encoder:
    """The model at `weight` from the first (0) to the second (1), with preprocessing and tokenizer of the first.

    Raises:
        InputError: the models differ in their shape, preprocessing or tokenizer, or the weight is not from 0 to 1.
    """
    if not 0 <= weight <= 1:
        raise InputError("interpolation", "weight", weight, "a number from 0 to 1")
    for name in ("spec", "preprocessing"):
        if getattr(first, name) != getattr(second, name):
            raise InputError(second.name, name, f"another one than of {first.name}", "models of one shape and input")
    tokenizers = [encoder.tokenizer and encoder.tokenizer.rust.to_str() for encoder in (first, second)]
    if tokenizers[0] != tokenizers[1]:
        raise InputError(second.name, "tokenizer", f"another one than of {first.name}", "models of one vocabulary")
    of_first, of_second = parameters_of(first.model), parameters_of(second.model)
    between = {path: (1 - weight) * array + weight * of_second[path] for path, array in of_first.items()}
    record = {"interpolated": {"weight": weight, "first": first.provenance, "second": second.provenance}}
    return trained_encoder(first, between, record)


def read_weights(text: str) -> dict[str, float]:
    """The weights of "0.1,0.5", by their text.

    Raises:
        InputError: one is not a number from 0 to 1, or comes twice.
    """
    weights: dict[str, float] = {}
    for each in text.split(","):
        try:
            value = float(each)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1 or value in weights.values():
            raise InputError("arguments", "--weight", repr(each), "different numbers from 0 to 1, such as 0.25,0.5")
        weights[each.strip()] = value
    return weights
