"""The plan of a sweep: its points, their configs, their folders, and the command that trains each.

A config file of `rococo train` may define a second function, `get_sweep()`, which returns a ConfigDict of options:

    over             "batch_size=32,64", or several such strings
    arms             "name: key=value key=value", or several such strings
    seeds            "0,1,2"
    keep             which length is equal for all batch sizes: "samples" or "steps"
    lr_scaling       how the learning rate depends on the batch size: "constant", "square-root" or "linear"

The command line overrides the file. A point is `(arm, a value of each axis, seed)`. Its config is the file's config,
changed by the overrides of the command line, then the point's values, then its arm, then the keys that depend on the
batch size. With k = batch size / base batch size:

    keep = samples              steps and warmup_steps are divided by k; ema is raised to the power of k, so that the
                                average covers the same number of samples
    lr_scaling = square-root    the learning rate is multiplied by sqrt(k), as for Adam (Malladi et al., 2205.10287)
    lr_scaling = linear         the learning rate is multiplied by k, as for SGD (Goyal et al., 1706.02677)

Logging, checkpoints and evaluations happen the same number of times in every point.
"""

import dataclasses
import itertools
import math
import re
import runpy
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.config_files import find_config
from rococo_jax.errors import InputError
from rococo_jax.options import read_numbers
from rococo_jax.storage import hash_json
from rococo_jax.sweep.axes import Arm, Axis, choose_arms, parse_axes, refuse_repeated
from rococo_jax.training.config import flat, read_config

POINTS = "points"
KEEP = ("samples", "steps")
LR_SCALING = ("constant", "square-root", "linear")
_SWEEP_KEYS = ("over", "arms", "seeds", "keep", "lr_scaling")
_EVERY = ("log.every", "checkpoint.every", "eval.every")


@dataclasses.dataclass(frozen=True)
class Point:
    """A training run of the grid.

    Attributes:
        run: name of its folder. Points with equal configs share one run, named after the first of them.
        arm: name of its arm, or "".
        values: value of each axis, as in the config.
        overrides: `--config.key=value` words that turn the sweep's config file into the point's config.
        derived_keys: keys among them that depend on the batch size, with their values.
    """

    name: str
    run: str
    arm: str
    values: tuple[Any, ...]
    seed: int
    config: ConfigDict
    overrides: tuple[str, ...]
    derived_keys: Mapping[str, Any]

    @property
    def work(self) -> int:
        """Number of images that the run is trained on, with repetitions."""
        return self.config.steps * self.config.batch_size


@dataclasses.dataclass(frozen=True)
class Plan:
    """All points of a sweep, ordered by seed."""

    config: Path
    axes: tuple[Axis, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    keep: str
    lr_scaling: str
    base: ConfigDict
    points: tuple[Point, ...]

    @property
    def runs(self) -> list[Point]:
        """The first point of each run, in training order."""
        return list({point.run: point for point in reversed(self.points)}.values())[::-1]

    def values(self, axis: int) -> list[Any]:
        """Return the values of an axis, as in the config."""
        return list(dict.fromkeys(point.values[axis] for point in self.points))

    def folder(self, workdir: Path, point: Point) -> Path:
        """Return the working folder of a point."""
        return workdir / POINTS / point.run

    def command(self, workdir: Path, point: Point) -> list[str]:
        """Return the command-line words after `rococo` that train a point."""
        folder = str(self.folder(workdir, point))
        return ["train", "--config", str(self.config), "--workdir", folder, *point.overrides]


def make_plan(
    config: str | Path,
    overrides: Sequence[str] = (),
    *,
    over: Sequence[str] = (),
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    keep: str | None = None,
    lr_scaling: str | None = None,
) -> Plan:
    """Build the plan of a sweep from a config file and the command line.

    Args:
        config: a config file of `rococo train`, with or without `get_sweep()`.
        overrides: `--config.key=value` words for all points.
        over, arms, seeds, keep, lr_scaling: as on the command line; the file's by default.

    Raises:
        InputError: a key is unknown (the nearest is named) or set by two options; a value is empty, repeated, of
            another type or not allowed; or the config file cannot be read.
    """
    path = find_config(config)
    base = read_config(path, overrides)
    defaults = _sweep_of(path)
    default_axes = _strings(defaults.get("over", ()))
    axes = parse_axes(over) if over else parse_axes(default_axes, f"{path}: get_sweep")
    selected_arms = choose_arms(arms, _strings(defaults.get("arms", ())))
    seeds = tuple(seeds) or read_numbers(tuple[int, ...], str(defaults.get("seeds", base.seed)), f"{path}: get_sweep")
    refuse_repeated("seeds", "seeds", seeds)
    keep = _one_of("keep", keep or defaults.get("keep", KEEP[0]), KEEP)
    lr_scaling = _one_of("lr_scaling", lr_scaling or defaults.get("lr_scaling", LR_SCALING[0]), LR_SCALING)
    _refuse_conflicting_overrides(overrides, axes, selected_arms)
    values_of_axes = [_values(path, overrides, axis) for axis in axes]
    base_of_arm = {arm.name: read_config(path, [*overrides, *_words(arm.overrides)]) for arm in selected_arms}
    points = []
    for seed, arm, values in itertools.product(seeds, selected_arms, itertools.product(*values_of_axes)):
        axis_keys = {key: value for axis, value in zip(axes, values, strict=True) for key in axis.keys}
        point_keys = {**axis_keys, **arm.overrides, "seed": seed}
        arm_base = base_of_arm[arm.name]
        batch_size = arm_base.batch_size
        if "batch_size" in axis_keys and "batch_size" not in arm.overrides:
            batch_size = axis_keys["batch_size"]
        batch_keys = keys_of_batch_size(arm_base, batch_size, point_keys, keep, lr_scaling)
        words = (*overrides, *_words(point_keys | batch_keys))
        name = _name(arm, axes, values, seed)
        points.append(Point(name, name, arm.name, values, seed, read_config(path, words), words, batch_keys))
    _refuse_equal_names(points)
    run_names: dict[str, str] = {}
    for place, point in enumerate(points):
        run = run_names.setdefault(hash_json(flat(point.config)), point.name)
        points[place] = dataclasses.replace(point, run=run)
    return Plan(path, axes, selected_arms, seeds, keep, lr_scaling, base, tuple(points))


def keys_of_batch_size(
    base: ConfigDict, batch_size: int, point_keys: Collection[str], keep: str = "samples", lr_scaling: str = "constant"
) -> dict[str, Any]:
    """Return the keys that depend on a point's batch size, with their values, except those that the point sets itself.

    Raises InputError: the samples of `base` cannot be divided into batches of this size.
    """
    keys: dict[str, Any] = {}
    share = batch_size / base.batch_size
    if batch_size == base.batch_size:
        return keys
    if keep == "samples" and "steps" not in point_keys:
        samples = base.steps * base.batch_size
        if samples % batch_size:
            length = f"the {samples:,} samples ({base.steps} steps of {base.batch_size})"
            raise InputError("over", "batch_size", batch_size, f"a divisor of {length} of every point, or `keep=steps`")
        keys["steps"] = samples // batch_size
        if base.optimizer.warmup_steps:
            keys["optimizer.warmup_steps"] = max(1, round(base.optimizer.warmup_steps / share))
        if base.ema:
            keys["ema"] = _readable(base.ema**share)
        for key in _EVERY:
            every = base[key.partition(".")[0]].every
            if every:
                keys[key] = max(1, round(every / share))
    if lr_scaling != "constant":
        factor = share if lr_scaling == "linear" else math.sqrt(share)
        keys["optimizer.learning_rate"] = _readable(base.optimizer.learning_rate * factor)
    return {key: value for key, value in keys.items() if key not in point_keys}


def _readable(value: float) -> float:
    """Round to six significant digits; for a decay near 1, to six digits of its distance from 1."""
    if 0.5 < value < 1:
        return round(1 - float(f"{1 - value:.6g}"), 15)
    return float(f"{value:.6g}")


def _sweep_of(path: Path) -> Mapping[str, Any]:
    """Return the options that the config file's `get_sweep` sets, if it has one."""
    names = runpy.run_path(str(path))
    options = names["get_sweep"]() if "get_sweep" in names else {}
    if not isinstance(options, ConfigDict | Mapping):
        raise InputError(path, "get_sweep", type(options).__name__, f"a ConfigDict with {', '.join(_SWEEP_KEYS)}")
    return {_one_of(f"{path}: get_sweep", key, _SWEEP_KEYS): value for key, value in options.items()}


def _strings(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else tuple(value)


def _one_of(source: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InputError(source, "value", repr(value), " or ".join(choices))
    return value


def _refuse_conflicting_overrides(overrides: Sequence[str], axes: Sequence[Axis], arms: Sequence[Arm]) -> None:
    """Raise InputError if the command line sets a key twice.

    An override of `batch_size` is allowed beside its axis: it is the base of the rules.
    """
    if any("seed" in axis.keys for axis in axes):
        raise InputError("over", "key", "'seed'", "`seeds`: the table has means over seeds")
    axis_keys = {key for axis in axes for key in axis.keys} - {"batch_size"}
    option_of_key = {"seed": "seeds", **dict.fromkeys(axis_keys, "over")}
    option_of_key |= {key: f"arm {arm.name!r}" for arm in arms for key in arm.overrides}
    for override in overrides:
        key = override.lstrip("-").removeprefix("config.").partition("=")[0]
        if key in option_of_key:
            expected = f"a key that the sweep does not set ({option_of_key[key]} does)"
            raise InputError(override, "override", repr(key), expected)


def _values(path: Path, overrides: Sequence[str], axis: Axis) -> list[Any]:
    """Return the values of an axis, parsed as in the config."""
    values: list[Any] = []
    for text in axis.texts:
        words = [f"--config.{key}={text}" for key in axis.keys]
        try:
            config = flat(read_config(path, [*overrides, *words]))
        except InputError as error:
            source = "over" if error.source in words else error.source
            raise InputError(source, error.field, error.found, error.wanted) from None
        value = config[axis.keys[0]]
        if value in values:
            raise InputError("over", axis.name, f"{text} twice", "each value once")
        values.append(value)
    return values


def _words(keys: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--config.{key}={value_text(value)}" for key, value in keys.items())


def _name(arm: Arm, axes: Sequence[Axis], values: Sequence[Any], seed: int) -> str:
    parts = [arm.name] if arm.name else []
    parts += [f"{axis.short}_{value_text(value)}" for axis, value in zip(axes, values, strict=True)]
    return re.sub(r"[^\w.+-]+", "_", "-".join([*parts, str(seed)]))


def value_text(value: Any) -> str:
    """Return the text of a value in names and tables.

    >>> value_text(2.0), value_text(512), value_text("local"), value_text(True)
    ('2', '512', 'local', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _refuse_equal_names(points: Sequence[Point]) -> None:
    """Raise InputError if two values differ only in characters that cannot occur in a folder's name."""
    point_of_name: dict[str, Point] = {}
    for point in points:
        other = point_of_name.setdefault(point.name, point)
        if other is not point:
            raise InputError("over", "value", f"{point.values} and {other.values}", "values that name two folders")
