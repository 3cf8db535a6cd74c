"""Tensor name lists, read in both directions, with one line per layer.

    ours                               theirs                                              kind
    vision.class_token                 {vision}embeddings.class_embedding
    {tower}.blocks.block.norm1         {prefix}encoder.layers.{layer}.layer_norm1          norm
    {tower}.blocks.block.attention.qkv {prefix}encoder.layers.{layer}.self_attn.{q,k,v}    linear

- ours: dotted path of a parameter, or of a module if its kind has several parameters (`KINDS`).
- theirs: name of the tensor or module. `{layer}` is the number of a block, `{q,k,v}` stands for several tensors that
  are one parameter of ours. `{vision}` and `{text}` are where the towers lie.
- kind: the layout; empty for a tensor that is stored as it is.
- A line with `{tower}` and `{prefix}` stands for both towers.

A list covers all variants of a family. Lines of parameters that a model lacks are left out, and in `a + b` the lines
of b replace those of a for the same parameter. `name_table` makes the table of one model, and raises unless every
parameter has exactly one name. A checkpoint with missing, unknown or misshapen tensors is refused with a list of them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rococo_jax.checkpoints.layouts import (
    CONVOLUTION,
    KERNEL,
    PATCH,
    PATCH_2X2,
    POINT,
    QUERY_VALUE_BIAS,
    SAME,
    Transform,
    leading_ones,
    without_first,
)
from rococo_jax.checkpoints.tensors import Tensors, common_prefixes, describe_prefixes, list_differences
from rococo_jax.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]
# As safetensors spells them, and as NumPy does.
_FLOATING = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}


class Part(NamedTuple):
    """A parameter of a module: the suffixes of both names, and the layout."""

    ours: str
    theirs: str
    transform: Transform = SAME


def _weight_and_bias(transform: Transform) -> tuple[Part, ...]:
    return (Part(".kernel", ".weight", transform), Part(".bias", ".bias"))


_NORM = (Part(".scale", ".weight"), Part(".bias", ".bias"))
KINDS: dict[str, tuple[Part, ...]] = {
    # Modules of torch: a linear layer, norms, and convolutions. The stride of `patch` and `patch_2x2` is their kernel;
    # `point` has a kernel of 1 x 1.
    "linear": _weight_and_bias(KERNEL),
    "norm": _NORM,
    "batch_norm": (*_NORM, Part(".mean", ".running_mean"), Part(".variance", ".running_var")),
    "patch": _weight_and_bias(PATCH),
    "patch_2x2": _weight_and_bias(PATCH_2X2),
    "point": _weight_and_bias(POINT),
    "convolution": _weight_and_bias(CONVOLUTION),
    # Modules of Flax.
    "flax": (Part(".kernel", "/kernel"), Part(".bias", "/bias")),
    "flax_norm": (Part(".scale", "/scale"), Part(".bias", "/bias")),
    # Single tensors: stored as it is; a transposed weight; the weight of `patch`; biases of queries and values alone;
    # a tensor with one or two axes of length 1 in front; a table with two unused rows in front.
    "": (Part("", ""),),
    "kernel": (Part("", "", KERNEL),),
    "patch_kernel": (Part("", "", PATCH),),
    "query_value_bias": (Part("", "", QUERY_VALUE_BIAS),),
    "leading_axis": (Part("", "", leading_ones(1)),),
    "leading_axes": (Part("", "", leading_ones(2)),),
    "skip_2_rows": (Part("", "", without_first(2)),),
}


@dataclass(frozen=True)
class Row:
    """`ours`, a dotted path of a parameter, is the `transform` of the tensors `theirs`.

    Below `.blocks.block.`, ours has a leading layer axis, and theirs contain "{layer}", counted from `first_layer`.
    """

    ours: str
    theirs: tuple[str, ...]
    transform: Transform = SAME
    first_layer: int = 0

    @property
    def is_stacked(self) -> bool:
        """True if ours stacks one array per layer."""
        return ".blocks.block." in self.ours

    def names(self, shape: tuple[int, ...]) -> list[list[str]]:
        """Return the tensors of a parameter with this shape: one list per layer, or a single list if not stacked."""
        layers = range(self.first_layer, self.first_layer + (shape[0] if self.is_stacked else 1))
        return [[name.replace("{layer}", str(layer)) for name in self.theirs] for layer in layers]


def module_rows(ours: str, theirs: str, kind: str | Transform = "", first_layer: int = 0) -> list[Row]:
    """Return the rows of one line: one row per parameter of its kind, which may also be a `Transform`."""
    group = re.search(r"\{(\w+(?:,\w+)+)\}", theirs)
    names = [theirs.replace(group[0], name) for name in group[1].split(",")] if group else [theirs] * bool(theirs)
    parts = (Part("", "", kind),) if isinstance(kind, Transform) else KINDS[kind]
    return [
        Row(f"{ours}{part.ours}", tuple(f"{name}{part.theirs}" for name in names), part.transform, first_layer)
        for part in parts
    ]


class Line(NamedTuple):
    """A line of a list of names."""

    ours: str
    theirs: str
    kind: str | Transform


class NameList:
    """Lines of names. `a + b` has the lines of both; those of b replace lines of a with the same parameter."""

    def __init__(self, lines: Iterable[Line]):
        self.lines = {line.ours: line for line in lines}

    def __add__(self, other: "NameList") -> "NameList":
        return NameList({**self.lines, **other.lines}.values())

    def rows(self, vision: str | None = "", text: str | None = "") -> list[Row]:
        """Return the rows of all lines, with the prefixes of both towers in place.

        A prefix of None leaves out the lines of that tower, for a model whose tower has other names.
        """
        prefixes = {"vision": vision, "text": text}
        rows = []
        for ours, theirs, kind in self.lines.values():
            if ours.startswith("{tower}"):
                for tower, prefix in prefixes.items():
                    if prefix is not None:
                        their_name = theirs.replace("{prefix}", prefix)
                        rows += module_rows(ours.replace("{tower}", tower), their_name, kind)
                continue
            if any(prefix is None and ours.startswith(tower) for tower, prefix in prefixes.items()):
                continue
            their_name = theirs
            for tower, prefix in prefixes.items():
                their_name = their_name.replace(f"{{{tower}}}", prefix or "")
            rows += module_rows(ours, their_name, kind)
        return rows


def names(text: str, **transforms: Transform) -> NameList:
    """Parse a list of names. `transforms` are layouts that only this list has, by the name of their kind.

    >>> names("text.norm  {text}final_layer_norm  norm").rows(text="text_model.")[0].theirs
    ('text_model.final_layer_norm.weight',)
    """
    lines = []
    for line in filter(None, map(str.strip, text.splitlines())):
        ours, theirs, *kind = line.split()
        name = kind[0] if kind else ""
        if len(kind) > 1 or (name not in KINDS and name not in transforms):
            raise ValueError(f"{line!r}: wanted ours, theirs and a kind: {', '.join([*KINDS, *transforms])}")
        lines.append(Line(ours, theirs, transforms.get(name, name)))
    if len({line.ours for line in lines}) < len(lines):
        raise ValueError(f"a parameter with two lines in {text!r}")
    return NameList(lines)


@dataclass(frozen=True)
class NameTable:
    """The names of all parameters of one model.

    Attributes:
        rows: one row per parameter.
        unused: rows of parameters that this model does not have.
        shapes: the shape of every parameter.
        ignored: regular expressions of tensors that nothing here uses (buffers, pretraining heads).
        aliases: (pattern, replacement), applied to the checkpoint's names first, for names of older releases.
    """

    rows: tuple[Row, ...]
    unused: tuple[Row, ...]
    shapes: Shapes
    ignored: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


def name_table(
    rows: Iterable[Row], shapes: Shapes, ignored: Iterable[str] = (), aliases: Iterable[tuple[str, str]] = ()
) -> NameTable:
    """Return the table of a model with these parameters. Raises AssertionError unless each has exactly one row."""
    rows = list(rows)
    model_rows = [row for row in rows if row.ours in shapes]
    unnamed = set(shapes) - {row.ours for row in model_rows}
    if unnamed or len(model_rows) > len(shapes):
        twice = {row.ours for row in model_rows if sum(other.ours == row.ours for other in model_rows) > 1}
        raise AssertionError(f"parameters without a name: {sorted(unnamed)}; with two names: {sorted(twice)}")
    unused = tuple(row for row in rows if row.ours not in shapes)
    return NameTable(tuple(model_rows), unused, shapes, tuple(ignored), tuple(aliases))


def read_parameters(source: Tensors, table: NameTable) -> dict[str, np.ndarray]:
    """Return our parameters by dotted path, as float32.

    Raises InputError with a list of all tensors that are missing, unknown, of a wrong shape, or not floating point.
    """
    source = source.renamed(table.aliases)
    check_tensors(source, table)
    parameters = {}
    for row in table.rows:
        layers = [
            row.transform.to_ours([source.read(name) for name in names_of_layer])
            for names_of_layer in row.names(table.shapes[row.ours])
        ]
        parameters[row.ours] = np.stack(layers) if row.is_stacked else layers[0]
    return parameters


def write_tensors(parameters: Mapping[str, np.ndarray], table: NameTable) -> dict[str, np.ndarray]:
    """Return the checkpoint's tensors by name: the inverse of `read_parameters`."""
    tensors = {}
    for row in table.rows:
        ours = parameters[row.ours]
        for layer, names_of_layer in enumerate(row.names(ours.shape)):
            arrays = row.transform.to_theirs(ours[layer] if row.is_stacked else ours, len(names_of_layer))
            tensors.update(zip(names_of_layer, arrays, strict=True))
    return tensors


def expected_tensors(table: NameTable) -> Shapes:
    """Return the name and shape of every tensor that a checkpoint must have.

    The way back is run on arrays that take no memory.
    """
    empty = {path: np.broadcast_to(np.float32(0), shape) for path, shape in table.shapes.items()}
    return {name: array.shape for name, array in write_tensors(empty, table).items()}


def check_tensors(source: Tensors, table: NameTable) -> None:
    """Raise InputError as `read_parameters` does; the aliases must have been applied to the names of `source`."""
    stored = set(source.names)
    expected = expected_tensors(table)
    unknown = {
        name for name in stored if name not in expected and not any(re.fullmatch(p, name) for p in table.ignored)
    }
    wrong = []
    for name in sorted(expected.keys() & stored):
        shape, kind = source.info(name)
        if shape != expected[name]:
            wrong.append(f"{name} of shape {shape} instead of {expected[name]}")
        elif kind not in _FLOATING:
            wrong.append(f"{name} of type {kind} instead of a floating-point one")
    missing = expected.keys() - stored
    if prefixes := common_prefixes(missing, unknown):
        problem, requirement = describe_prefixes(prefixes, len(missing))
        if others := sorted(name for name in unknown if not name.startswith(tuple(prefixes))):
            problem += f", beside {list_differences(others=others)}"
        raise InputError(source.path, "tensors", problem, f"{requirement}, and nothing but the model's tensors")
    if differences := list_differences(missing=missing, unknown=unknown, wrong=wrong):
        requirement = f"the {len(expected)} tensors of a model with its configuration"
        raise InputError(source.path, "tensors", differences, requirement)
