"""The plan of a sweep: its points, their configs, their folders, and the command that trains each.

A config file of `rococo train` may have a second function, `get_sweep()`, a ConfigDict of the command line's options:

    over             "batch_size=32,64", or several such strings
    arms             "name: key=value key=value", or several such strings
    seeds            "0,1,2"
    keep             what is the same for all batch sizes: "samples" or "steps"
    lr_scaling       how the learning rate follows the batch size: "constant", "square-root", "linear" or "adam"

The command line overrides the file. A point is `(arm, a value of each axis, seed)`; its config is the file's with the
overrides of the command line, then the point's values, then its arm's, then what follows from its batch size:

    keep = samples              steps, warmup_steps = those of the base / k            k = batch size / that of the base
                                ema = that of the base ** k: the average reaches back over as many samples
    lr_scaling = square-root    learning rate = that of the base * sqrt(k)
    lr_scaling = linear         learning rate = that of the base * k
    lr_scaling = adam           as square-root; 1 - b1, 1 - b2 = those of the base * k, eps = that of the base / sqrt(k)

The last is the rule for Adam (Malladi et al., arXiv 2205.10287), of which the square root alone is the part that many
use; the linear one is that for SGD (Goyal et al., 1706.02677). What happens every so many steps (log, checkpoint,
evaluation) happens as often in every point.
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
from rococo_jax.sweep.axes import Arm, Axis, choose_arms, parse_axes, refuse_twice
from rococo_jax.training.config import flat, read_config

POINTS = "points"
KEEP = ("samples", "steps")
LR_SCALING = ("constant", "square-root", "linear", "adam")
_SWEEP_KEYS = ("over", "arms", "seeds", "keep", "lr_scaling")
_EVERY = ("log.every", "checkpoint.every", "eval.every")


@dataclasses.dataclass(frozen=True)
class Point:
    """One training run.

    Attributes:
        run: name of its folder. Points whose configs are the same are one run, named after the first of them.
        arm: name of its arm, or "".
        values: of each axis, as the config has them.
        overrides: `--config.key=value` words that make the config of the sweep's config file.
        scaled: the keys among them that follow from the batch size, with their values.
    """

    name: str
    run: str
    arm: str
    values: tuple[Any, ...]
    seed: int
    config: ConfigDict
    overrides: tuple[str, ...]
    scaled: Mapping[str, Any]

    @property
    def work(self) -> int:
        """Images that the run sees."""
        return self.config.steps * self.config.batch_size


@dataclasses.dataclass(frozen=True)
class Plan:
    """All points of a sweep, the first seed's before the second's."""

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
        """One point of each run, in the order in which they are made."""
        return list({point.run: point for point in reversed(self.points)}.values())[::-1]

    def values(self, axis: int) -> list[Any]:
        """The values of an axis, as the config has them."""
        return list(dict.fromkeys(point.values[axis] for point in self.points))

    def folder(self, workdir: Path, point: Point) -> Path:
        """The working folder of a point."""
        return workdir / POINTS / point.run

    def command(self, workdir: Path, point: Point) -> list[str]:
        """The words after `rococo` that train a point."""
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
        over, arms, seeds, keep, lr_scaling: as on the command line; what is not given is the file's.

    Raises:
        InputError: an unknown key (the nearest is named), a value that is empty, repeated, of another type or not
            allowed, a key that two of them set, or a config file that cannot be read.
    """
    path = find_config(config)
    base = read_config(path, overrides)
    asked = _sweep_of(path)
    axes = parse_axes(over) if over else parse_axes(_strings(asked.get("over", ())), f"{path}: get_sweep")
    chosen = choose_arms(arms, _strings(asked.get("arms", ())))
    seeds = tuple(seeds) or read_numbers(tuple[int, ...], str(asked.get("seeds", base.seed)), f"{path}: get_sweep")
    refuse_twice("seeds", "seeds", seeds)
    keep = _one_of("keep", keep or asked.get("keep", KEEP[0]), KEEP)
    lr_scaling = _one_of("lr_scaling", lr_scaling or asked.get("lr_scaling", LR_SCALING[0]), LR_SCALING)
    _refuse_overridden(overrides, axes, chosen)
    values = [_values(path, overrides, axis) for axis in axes]
    bases = {arm.name: read_config(path, [*overrides, *_words(arm.overrides)]) for arm in chosen}
    points = []
    for seed, arm, place in itertools.product(seeds, chosen, itertools.product(*map(range, map(len, values)))):
        of_point = tuple(each[index] for each, index in zip(values, place, strict=True))
        swept = {key: value for axis, value in zip(axes, of_point, strict=True) for key in axis.keys}
        own = {**swept, **arm.overrides, "seed": seed}
        base_of_arm = bases[arm.name]
        batch_size = base_of_arm.batch_size if "batch_size" in arm.overrides else swept.get("batch_size")
        scaled = derived(base_of_arm, batch_size or base_of_arm.batch_size, own, keep, lr_scaling)
        words = (*overrides, *_words(own | scaled))
        name = _name(arm, axes, of_point, seed)
        points.append(Point(name, name, arm.name, of_point, seed, read_config(path, words), words, scaled))
    _refuse_same_names(points)
    runs: dict[str, str] = {}
    points = [
        dataclasses.replace(point, run=runs.setdefault(hash_json(flat(point.config)), point.name)) for point in points
    ]
    return Plan(path, axes, chosen, seeds, keep, lr_scaling, base, tuple(points))


def derived(
    base: ConfigDict, batch_size: int, taken: Collection[str], keep: str = "samples", lr_scaling: str = "constant"
) -> dict[str, Any]:
    """The keys that follow from a point's batch size, with their values; keys `taken` by the sweep or an arm stay.

    Raises InputError where the samples of `base` do not split into whole batches, or Adam's rule leaves no average.
    """
    keys: dict[str, Any] = {}
    share = batch_size / base.batch_size
    if batch_size == base.batch_size:
        return keys
    if keep == "samples" and "steps" not in taken:
        samples = base.steps * base.batch_size
        if samples % batch_size:
            seen = f"{samples:,} samples ({base.steps} steps of {base.batch_size})"
            wanted = f"a divisor of the {seen} that every point sees; or keep=steps"
            raise InputError("over", "batch_size", batch_size, wanted)
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
    if lr_scaling == "adam":
        for beta in ("b1", "b2"):
            value = round(1 - share * (1 - base.optimizer[beta]), 15)
            if value <= 0 and f"optimizer.{beta}" not in taken:
                found = f"{batch_size}: {beta} would be {value:g}"
                wanted = f"less than {base.batch_size / (1 - base.optimizer[beta]):g} with lr_scaling=adam"
                raise InputError("over", "batch_size", found, wanted)
            keys[f"optimizer.{beta}"] = _readable(value)
        keys["optimizer.eps"] = _readable(base.optimizer.eps / math.sqrt(share))
    return {key: value for key, value in keys.items() if key not in taken}


def _readable(value: float) -> float:
    """Six digits: a value that people can read, a millionth from the rule at most; a decay by what it is short of 1."""
    short = float(f"{1 - value:.6g}")
    return round(1 - short, 15) if 0.5 < value < 1 else float(f"{value:.6g}")


def _sweep_of(path: Path) -> Mapping[str, Any]:
    names = runpy.run_path(str(path))
    asked = names["get_sweep"]() if "get_sweep" in names else {}
    if not isinstance(asked, ConfigDict | Mapping):
        raise InputError(path, "get_sweep", type(asked).__name__, f"a ConfigDict with {', '.join(_SWEEP_KEYS)}")
    found = {}
    for key, value in asked.items():
        found[_one_of(f"{path}: get_sweep", key, _SWEEP_KEYS)] = value
    return found


def _strings(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else tuple(value)


def _one_of(source: str, found: str, known: Sequence[str]) -> str:
    if found not in known:
        raise InputError(source, "value", repr(found), " or ".join(known))
    return found


def _refuse_overridden(overrides: Sequence[str], axes: Sequence[Axis], arms: Sequence[Arm]) -> None:
    """A key that two of the command line's options set. `batch_size` is where the rules start from."""
    if any("seed" in axis.keys for axis in axes):
        raise InputError("over", "what is swept", "'seed'", "seeds, over which the table has means")
    swept = {key for axis in axes for key in axis.keys} - {"batch_size"}
    taken = {"seed": "seeds", **dict.fromkeys(swept, "over")}
    taken |= {key: f"arm {arm.name!r}" for arm in arms for key in arm.overrides}
    for override in overrides:
        key = override.lstrip("-").removeprefix("config.").partition("=")[0]
        if key in taken:
            raise InputError(override, "override", repr(key), f"a key that the sweep does not set ({taken[key]} does)")


def _values(path: Path, overrides: Sequence[str], axis: Axis) -> list[Any]:
    """The values of an axis, each read as the config reads it."""
    values = []
    for text in axis.texts:
        words = [f"--config.{key}={text}" for key in axis.keys]
        try:
            read = flat(read_config(path, [*overrides, *words]))
        except InputError as error:
            source = "over" if error.source in words else error.source
            raise InputError(source, error.field, error.found, error.wanted) from None
        if read[axis.keys[0]] in values:
            raise InputError("over", axis.name, f"{text} twice", "each value once")
        values.append(read[axis.keys[0]])
    return values


def _words(keys: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--config.{key}={written(value)}" for key, value in keys.items())


def _name(arm: Arm, axes: Sequence[Axis], values: Sequence[Any], seed: int) -> str:
    parts = [arm.name] if arm.name else []
    parts += [f"{axis.short}_{written(value)}" for axis, value in zip(axes, values, strict=True)]
    return re.sub(r"[^\w.+-]+", "_", "-".join([*parts, str(seed)]))


def written(value: Any) -> str:
    """A value as people write it.

    >>> written(2.0), written(512), written("local"), written(True)
    ('2', '512', 'local', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _refuse_same_names(points: Sequence[Point]) -> None:
    """Two values may differ in characters alone that no folder's name can hold."""
    places: dict[str, Point] = {}
    for point in points:
        other = places.setdefault(point.name, point)
        if other is not point:
            raise InputError("over", "value", f"{point.values} and {other.values}", "values that name two folders")
