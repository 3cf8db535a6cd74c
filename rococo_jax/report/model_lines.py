"""Description of a model in one line, from the `about` of its results."""

from pathlib import PurePath
from typing import Any

from rococo_jax.errors import is_number, is_whole, object_of
from rococo_jax.report.collection import Run

# Losses as the papers abbreviate them; others by their key.
_LOSSES = {"sc": "SC", "vc": "VC", "blind": "blind", "grounding": "grounding", "hard_positives": "hard positives"}


def model_line(run: Run) -> str:
    """Return size and training of a model, such as "1.0 M parameters, trained for 1,000 steps with SC, VC".

    The line contains only what is in the results; it is empty if they have neither.
    """
    about = object_of(run.results.get("about"))
    total = object_of(about.get("parameters")).get("total")
    provenance = object_of(about.get("provenance"))
    return ", ".join(filter(None, [parameter_count(total), _training(provenance), _source(provenance)]))


def parameter_count(total: Any) -> str:
    """Return a number of parameters in words; an empty text for anything that is no number.

    >>> parameter_count(979_969), parameter_count(151_277_313), parameter_count(None)
    ('1.0 M parameters', '151 M parameters', '')
    """
    if not is_whole(total):
        return ""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if total >= 0.95 * size:
            number = total / size
            return f"{number:.1f} {unit} parameters" if number < 10 else f"{number:.0f} {unit} parameters"
    return f"{total} parameters"


def _training(provenance: dict[str, Any]) -> str:
    """Return how long and with which losses a model was trained with this project."""
    trained = object_of(provenance.get("trained"))
    step, config = trained.get("step"), object_of(trained.get("config"))
    if not is_whole(step):
        return ""
    keys = [key for key in config if key.startswith("losses.") and key.endswith(".weight")]
    names = [key.split(".")[1] for key in keys if is_number(config[key]) and config[key]]
    losses = ", ".join(_LOSSES.get(name, name.replace("_", " ")) for name in names)
    return f"trained for {step:,} steps with the contrastive loss {f'and {losses}' if losses else 'alone'}"


def _source(provenance: dict[str, Any]) -> str:
    source = provenance.get("source")
    if not isinstance(source, str) or "trained" in provenance:
        return ""
    # Of a path only the last part is of interest to other readers; a hub name has two parts.
    name = PurePath(source).name if PurePath(source).is_absolute() or source.startswith(".") else source
    # Stored numbers were made elsewhere, and nothing was converted.
    kind = provenance.get("kind")
    return f"{kind if isinstance(kind, str) else 'converted'} from {name}" if name else ""
