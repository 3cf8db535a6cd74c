"""Configuration of a training run: read config files, apply overrides, check values.

A config file is Python with a function `get_config()` that changes and returns `default_config()`, an ml_collections
ConfigDict. Overrides are written `--config.losses.sc.weight=0.5`. The keys, their help and their checks are declared in
`config_keys`. A key that does not exist is refused where it is written, and the error names the nearest key.
"""

import ast
import difflib
import json
import math
import os
import re
import runpy
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.config_fields import Need
from rococo_jax.config_files import find_config
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json_object, write_json
from rococo_jax.training.config_keys import all_keys, profiled_steps
from rococo_jax.training.config_needs import cached_sides

# Sections whose keys are not declared: they describe a model, and `ModelSpec` and `Preprocessing` check them.
FREE_SECTIONS = ("init.spec", "init.preprocessing")

# The step computes in float32 and int32.
_LARGEST_FLOAT, _LARGEST_INT = 3.4028234e38, 2**31 - 1


def default_config() -> ConfigDict:
    """Return a config with all keys and their defaults; `docs/reference/config.md` lists them.

    It is locked: `config.stepz = 5` raises an AttributeError that names the nearest key. An empty string means that
    nothing is given.
    """
    config = ConfigDict(_defaults(all_keys()))
    config.lock()
    for section in FREE_SECTIONS:
        parent, name = section.split(".")
        config[parent][name].unlock()
    return config


def _defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _defaults(each) if isinstance(each, Mapping) else each.default for name, each in keys.items()}


def read_config(config: str | os.PathLike, overrides: Sequence[str] = ()) -> ConfigDict:
    """Read a config file, apply overrides (`config.key=value`, with or without leading dashes) and check the result.

    Args:
        config: path of a Python file with `get_config()`, or the name of a config that comes with the project, such as
            `scenes_tiny`.

    Raises InputError: no such file, no `get_config` in it, an unknown key, or a bad value.
    """
    path = find_config(config)
    values = _run_config(path)
    if not isinstance(values, ConfigDict):
        raise InputError(path, "get_config", type(values).__name__, "a ConfigDict, from default_config()")
    _check_keys(path, values)
    defaults = flat(default_config())
    for override in _joined(overrides):
        key, separator, text = override.lstrip("-").removeprefix("config.").partition("=")
        if not separator:
            raise InputError(override, "override", "no '='", "--config.key=value")
        _check_key(override, key, defaults)
        _set(values, key, _parsed(override, text, defaults.get(key)))
    check_config(values, path)
    return values


def _joined(overrides: Sequence[str]) -> list[str]:
    """Join the two words of `--config.key value` to `--config.key=value`.

    >>> _joined(["--config.steps", "5", "--config.seed=1"])
    ['--config.steps=5', '--config.seed=1']
    """
    joined: list[str] = []
    for word in overrides:
        needs_value = bool(joined) and joined[-1].startswith("--config.") and "=" not in joined[-1]
        if needs_value and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _run_config(path: Path) -> Any:
    """Return what `get_config` of a Python file returns. Raises InputError, with the line, for whatever it raises."""
    try:
        names = runpy.run_path(str(path))
        if "get_config" not in names:
            raise InputError(path, "get_config", "no such function", "a function that returns a ConfigDict")
        return names["get_config"]()
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # including SystemExit
        lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == str(path)]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        place = f" (line {line})" if line else ""
        # ml_collections lists all other keys of the section in the error about an unknown one.
        if unknown := re.search(r'Key \\?"(.+?)\\?" does not exist', str(error)):
            similar = re.search(r'Did you mean \\?"(.+?)\\?"', str(error))
            hint = f"; did you mean {similar[1]!r}?" if similar else ""
            raise InputError(path, "config key", f"{unknown[1]!r}{place}", f"a key of the config{hint}") from None
        problem = f"{type(error).__name__}: {error}{place}"
        raise InputError(path, "config", problem, "a Python file whose get_config() returns a ConfigDict") from None


def _check_keys(source: object, config: ConfigDict) -> None:
    defaults = flat(default_config())
    for key in flat(config):
        _check_key(source, key, defaults)
    if missing := sorted(defaults.keys() - flat(config).keys()):
        raise InputError(source, "config key", f"no {missing[0]!r}", "all keys; start from default_config()")


def _check_key(source: object, key: str, defaults: Mapping[str, Any]) -> None:
    if key in defaults or any(key.startswith(f"{section}.") for section in FREE_SECTIONS):
        return
    raise InputError(source, "config key", repr(key), _nearest_key(key))


def _nearest_key(key: str) -> str:
    """Return what an error about an unknown key suggests: a key whose last part is the same, or a similar key."""
    names = list(flat(all_keys()))
    same_last_part = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    candidates = same_last_part or difflib.get_close_matches(key, names, 1, cutoff=0.4)
    return f"a key of the config; did you mean {candidates[0]!r}?" if candidates else "a key of the config"


_TYPES = {int: "a whole number", float: "a number", bool: "true or false"}


def _parsed(source: str, text: str, default: Any) -> Any:
    """Convert a text to the type of `default`; without one (in `init.spec`), read a literal, or else a string.

    >>> _parsed("", "causal", None), _parsed("", "[1, 2]", None), _parsed("", "true", None)
    ('causal', [1, 2], True)
    """
    if isinstance(default, str):
        # "auto" is the default of a key that also takes numbers.
        return int(text) if default == "auto" and text.isdecimal() else text
    switches = {"true": True, "false": False}
    try:
        value = switches.get(text.lower()) if isinstance(default, bool) else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = switches.get(text.lower(), text) if default is None else None
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if default is not None and type(value) is not type(default):
        raise InputError(source, "value", repr(text), _TYPES[type(default)])
    return value


def _set(config: ConfigDict, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        config = config[parent]
    config[last] = value


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values by dotted key. The free sections `init.spec` and `init.preprocessing` are one value each."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, ConfigDict | Mapping) and path not in FREE_SECTIONS:
            leaves |= flat(value, f"{path}.")
        else:
            leaves[path] = value.to_dict() if isinstance(value, ConfigDict) else value
    return leaves


def check_config(config: ConfigDict, source: object = "config") -> None:
    """Raise InputError for an unknown key, a value out of range, or values that do not go together.

    A value that has no effect is one of these (`Key.needs`).
    """
    _check_keys(source, config)
    leaves = flat(config)
    for key, value in leaves.items():
        if isinstance(value, float) and not (math.isfinite(value) and abs(value) <= _LARGEST_FLOAT):
            raise InputError(source, f"config.{key}", value, "a finite number in the range of float32")
        if isinstance(value, int) and key != "seed" and abs(value) > _LARGEST_INT:
            raise InputError(source, f"config.{key}", value, f"at most {_LARGEST_INT}")
    for name, key in flat(all_keys()).items():
        if key.check is not None and not key.check.holds(leaves[name]):
            raise InputError(source, f"config.{name}", repr(leaves[name]), key.check.expected)
    _check_combinations(source, config)
    for name, need in settings_without_effect(config):
        if not need.allows_presets:
            default = flat(all_keys())[name].default
            expected = f"{default:g}" if isinstance(default, float) else repr(default)
            raise InputError(source, f"config.{name}", repr(leaves[name])[:80], f"{expected} {need.otherwise}")
    # Imported late: it imports encoders, which other users of this module do not need.
    from rococo_jax.training.inputs import check_fields

    check_fields(source, config)


def _check_combinations(source: object, config: ConfigDict) -> None:
    """Raise InputError for values that do not go together."""
    data, train = config.data, config.train
    leaves = flat(config)

    def require(key: str, holds: Any, expected: str, problem: str = "") -> None:
        if not holds:
            raise InputError(source, f"config.{key}", problem or repr(leaves[key]), expected)

    steps = profiled_steps(config.profile.steps)
    is_range = steps is not None and (len(steps) > 0 or not config.profile.steps)
    expected = f"'' or FIRST:END with FIRST < END <= {config.steps}, the number of steps"
    require("profile.steps", is_range and steps.stop <= config.steps, expected)

    problem = f"{config.batch_size} in {config.micro_batches} parts"
    require("micro_batches", config.batch_size % config.micro_batches == 0, "a divisor of batch_size", problem)

    expected = f"at most {config.steps}, the number of steps"
    require("optimizer.warmup_steps", config.optimizer.warmup_steps <= config.steps, expected)

    sides = cached_sides(config)
    problem = f"true, and the towers train {train.vision!r} and {train.text!r}"
    expected = "config.train.vision 'none', and .text too for features of both"
    require("data.cached_features", not sides or train.vision == "none", expected, problem)
    expected = "'auto' or 0 with config.data.cached_features of both towers: no images are decoded"
    require("data.workers", "text" not in sides or data.workers in ("auto", 0), expected)


def settings_without_effect(config: ConfigDict) -> Iterator[tuple[str, Need]]:
    """Yield the names of keys that have another value than their default but no effect, with the need that is not met.

    A key is named once for each of its needs.
    """
    leaves = flat(config)
    for name, key in flat(all_keys()).items():
        if leaves[name] != key.default:
            yield from ((name, need) for need in key.needs if not need.holds(config))


def write_config(path: Path, config: ConfigDict) -> None:
    """Write the resolved config as JSON, by dotted key."""
    write_json(path, flat(config))


def check_same_config(path: Path, config: ConfigDict) -> dict[str, Any]:
    """Return the config saved in a working directory, after checking that a run may resume with `config`.

    Keys that affect nothing (`Key.affects`) may differ, and `steps` may grow.

    Raises InputError: another key differs, or `steps` is smaller.
    """
    # Keys that did not exist when the directory was started have their defaults there.
    saved = {**flat(default_config()), **read_json_object(path, "the config of a training run")}
    requested = json.loads(json.dumps(flat(config)))
    declared = flat(all_keys())
    for key in sorted(saved.keys() | requested.keys()):
        if saved.get(key) == requested.get(key) or (key in declared and declared[key].affects == "nothing"):
            continue
        expected = f"{saved.get(key)!r}, with which this folder was begun"
        if key != "steps":
            raise InputError(path.parent, f"config.{key}", repr(requested.get(key)), f"{expected}, or another workdir")
        if requested[key] < saved[key]:
            raise InputError(path.parent, "config.steps", requested[key], f"{expected}, or more, or another workdir")
    return saved


def keys_of_features(config: ConfigDict) -> dict[str, Any]:
    """Return the values that decide the features of frozen towers. A weight of a loss decides by being above 0."""
    keys = flat(all_keys())
    values = {name: value for name, value in flat(config).items() if keys[name].affects == "features"}
    return {name: bool(value) if name.endswith(".weight") else value for name, value in values.items()}
