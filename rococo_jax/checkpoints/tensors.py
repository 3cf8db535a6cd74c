"""Reading and writing a foreign checkpoint by a table of names: one row a parameter of ours.

A table tells, for every parameter of the model, which tensors of the checkpoint it is made of and how they are laid
out; and which tensors may be left aside. Anything else is an error that lists all differences at once.

A layout is a `Transform`, a pair of inverse functions between one array of ours and one or several of theirs. Those of
forms that can be exported only move numbers, so a round trip gives the same bits; the way back also works out which
shapes a checkpoint must have.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy learns the name "bfloat16" by this import
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rococo_jax.errors import InputError
from rococo_jax.storage import why_unreadable

# Components that wrappers of torch put before the names of all tensors, and those that they put into them.
_WRAPPERS = ("module", "model", "base_model", "net", "network", "clip", "clip_model")
_WRAPPERS_ANYWHERE = r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
# As safetensors spells them, and as NumPy does.
_FLOATING = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}


class Tensors:
    """Named tensors of a checkpoint, read one at a time; a context manager that closes what they come from.

    `about` has the shape and type of each, by the type's name in safetensors or NumPy; `path` is for error lines, and
    `origin` tells for provenance which part of a file they are and which prefix was left out of their names.
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, tuple[tuple[int, ...], str]],
        read: Callable[[str], np.ndarray],
        close: Callable[[], None] = lambda: None,
        origin: str = "",
    ):
        self.path, self._about, self._read, self._close = path, dict(about), read, close
        self.origin = origin or path.name

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._close()

    @property
    def names(self) -> list[str]:
        """All tensors there are."""
        return sorted(self._about)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it. Raises InputError where it is not there."""
        self.require([name], "the tensors that tell the sizes of the model")
        return self._about[name][0]

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor as float32."""
        return self._read(name).astype(np.float32)

    def about(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape of a tensor, and its type as safetensors or NumPy spells it: F32, BF16, int64..."""
        return self._about[name]

    def stored(self, name: str) -> np.ndarray:
        """Values of a tensor as they are stored."""
        return self._read(name)

    def require(self, names: Iterable[str], wanted: str) -> None:
        """Raises InputError where a tensor is not there."""
        names = list(names)
        if missing := [name for name in names if name not in self._about]:
            if prefix := common_prefix(missing, self._about):
                wanted = f"names without it, as model.state_dict() gives them: {wanted}"
                raise InputError(self.path, "tensors", f"the prefix {prefix!r} before {len(missing)} names", wanted)
            raise InputError(self.path, "tensors", f"no {', '.join(missing)}", wanted)

    def count(self, pattern: str) -> int:
        """How many different texts the group of a pattern matches at the beginning of the names: layers, by number."""
        return len({match[1] for name in self._about if (match := re.match(pattern, name))})

    def renamed(self, aliases: Iterable[tuple[str, str]]) -> "Tensors":
        """The same tensors; (pattern, replacement) are applied to their names."""
        stored = {functools.reduce(lambda new, alias: re.sub(*alias, new), aliases, name): name for name in self._about}
        about = {new: self._about[name] for new, name in stored.items()}
        return Tensors(self.path, about, lambda new: self._read(stored[new]), self._close, self.origin)

    def extended(self, name: str, array: np.ndarray) -> "Tensors":
        """The same tensors and one more."""
        about = {**self._about, name: (array.shape, array.dtype.name)}
        read = self._read
        return Tensors(self.path, about, lambda each: array if each == name else read(each), self._close, self.origin)

    def unwrapped(self) -> "Tensors":
        """The same tensors without what wrappers of torch put before all names, or into them."""
        plain, prefix = self.renamed([(_WRAPPERS_ANYWHERE, "")]), ""
        while True:
            # The counter of averaged models stands beside `module.`.
            heads = {name.partition(".")[0] for name in plain._about if name != "n_averaged" and "." in name}
            bare = [name for name in plain._about if "." not in name and name != "n_averaged"]
            if bare or len(heads) != 1 or not heads & set(_WRAPPERS):
                break
            prefix += f"{next(iter(heads))}."
            plain = plain.renamed([(f"^{next(iter(heads))}\\.", "")])
        if prefix or plain.names != self.names:
            plain.origin += f" without {prefix}" if prefix else " without wrappers"
            plain._about.pop("n_averaged", None)
        return plain


def open_safetensors(path: Path) -> Tensors:
    """The tensors of a file. Raises InputError where it is not there, cut short or otherwise unreadable."""
    if not path.is_file():
        raise InputError(path, "file", "nothing there", "a safetensors file")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(safe_open(path, framework="np"))
        except SafetensorError as error:
            why = why_unreadable(path, error)
            raise InputError(path, "safetensors file", why, "a whole safetensors file") from None
        slices = {tensor: file.get_slice(tensor) for tensor in file.keys()}  # noqa: SIM118  no mapping
        about = {tensor: (tuple(part.get_shape()), part.get_dtype()) for tensor, part in slices.items()}
        return Tensors(path, about, file.get_tensor, stack.pop_all().close)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors row by row; a transposed view would be stored in the order of its memory."""
    contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt"})


@dataclass(frozen=True)
class Transform:
    """`to_ours(theirs) -> ours` and `to_theirs(ours, count) -> theirs`, where `count` arrays make one of ours."""

    to_ours: Callable[[Sequence[np.ndarray]], np.ndarray]
    to_theirs: Callable[[np.ndarray, int], list[np.ndarray]]


def leading_ones(axes: int) -> Transform:
    """Theirs has `axes` more axes of length 1 in front."""
    return Transform(
        to_ours=lambda theirs: theirs[0].reshape(theirs[0].shape[axes:]),
        to_theirs=lambda ours, _: [ours.reshape((1,) * axes + ours.shape)],
    )


def without_first(count: int) -> Transform:
    """Theirs has `count` more rows before ours that nothing reads; they come back as zeros."""
    return Transform(
        to_ours=lambda theirs: theirs[0][count:],
        to_theirs=lambda ours, _: [np.concatenate([np.zeros((count, *ours.shape[1:]), ours.dtype), ours])],
    )


def patch(size: int | None = None) -> Transform:
    """A convolution whose stride is its kernel: (outputs, channels, rows, columns) there, (rows x columns x channels,
    outputs) here. `size` is the side of the kernel, by default what it is for three channels.
    """

    def to_theirs(ours: np.ndarray, _: int) -> list[np.ndarray]:
        side = size or round((ours.shape[0] / 3) ** 0.5)
        return [ours.reshape(side, side, -1, ours.shape[1]).transpose(3, 2, 0, 1)]

    return Transform(lambda theirs: theirs[0].transpose(2, 3, 1, 0).reshape(-1, theirs[0].shape[0]), to_theirs)


# As it is. Several of theirs lie side by side in ours: the biases of queries, keys and values.
SAME = Transform(
    to_ours=lambda theirs: theirs[0] if len(theirs) == 1 else np.concatenate(theirs, axis=-1),
    to_theirs=lambda ours, count: np.split(ours, count, axis=-1),
)
# The weight of a linear layer: (outputs, inputs) there, (inputs, outputs) here; several side by side.
KERNEL = Transform(
    to_ours=lambda theirs: np.concatenate([weight.T for weight in theirs], axis=-1),
    to_theirs=lambda ours, count: [kernel.T for kernel in np.split(ours, count, axis=-1)],
)
# The biases of queries and values; keys have none, which is a bias of zeros.
QUERY_VALUE_BIAS = Transform(
    to_ours=lambda theirs: np.concatenate([theirs[0], np.zeros_like(theirs[0]), theirs[1]]),
    to_theirs=lambda ours, _: np.split(ours, 3, axis=-1)[::2],
)
# A convolution over patches of pixels, and one over single cells.
PATCH, POINT = patch(), patch(1)
# A convolution: (outputs, inputs, rows, columns) there, (rows, columns, inputs, outputs) here.
CONVOLUTION = Transform(
    to_ours=lambda theirs: theirs[0].transpose(2, 3, 1, 0),
    to_theirs=lambda ours, _: [ours.transpose(3, 2, 0, 1)],
)


@dataclass(frozen=True)
class Row:
    """`ours`, a dotted path of parameters, is `transform` of the tensors `theirs`.

    Below `.blocks.block.` ours has a leading layer axis, and theirs hold "{layer}", counted from `first_layer`.
    """

    ours: str
    theirs: str | tuple[str, ...]
    transform: Transform = SAME
    first_layer: int = 0

    @property
    def stacked(self) -> bool:
        """Whether ours stacks one array of theirs a layer."""
        return ".blocks.block." in self.ours

    def names(self, shape: tuple[int, ...]) -> list[list[str]]:
        """Their names for an array of ours, one list a layer (a single one where ours is not stacked)."""
        theirs = (self.theirs,) if isinstance(self.theirs, str) else self.theirs
        numbers = range(self.first_layer, self.first_layer + (shape[0] if self.stacked else 1))
        return [[name.replace("{layer}", str(layer)) for name in theirs] for layer in numbers]


@dataclass(frozen=True)
class NameTable:
    """All rows of a model, one for each parameter.

    Attributes:
        ignored: regular expressions of tensors that carry nothing we use (buffers, pretraining heads).
        aliases: (pattern, replacement) applied to the checkpoint's names first, for names of older releases.
    """

    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


def linear_rows(ours: str, *theirs: str, bias: bool = True) -> list[Row]:
    """Rows of a linear layer of torch, or of several that lie side by side in ours."""
    rows = [Row(f"{ours}.kernel", tuple(f"{name}.weight" for name in theirs), KERNEL)]
    return rows + ([Row(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))] if bias else [])


def convolution_rows(ours: str, theirs: str, transform: Transform = CONVOLUTION, first_layer: int = 0) -> list[Row]:
    """Rows of a convolution of torch with a bias."""
    kernel = Row(f"{ours}.kernel", f"{theirs}.weight", transform, first_layer)
    return [kernel, Row(f"{ours}.bias", f"{theirs}.bias", first_layer=first_layer)]


def norm_rows(ours: str, theirs: str, first_layer: int = 0) -> list[Row]:
    """Rows of a layer norm of torch."""
    names = {"scale": "weight", "bias": "bias"}
    return [Row(f"{ours}.{our}", f"{theirs}.{their}", first_layer=first_layer) for our, their in names.items()]


def batch_norm_rows(ours: str, theirs: str, first_layer: int = 0) -> list[Row]:
    """Rows of a batch norm of torch with its statistics."""
    statistics = {"mean": "running_mean", "variance": "running_var"}
    rows = [Row(f"{ours}.{our}", f"{theirs}.{their}", first_layer=first_layer) for our, their in statistics.items()]
    return norm_rows(ours, theirs, first_layer) + rows


def block_rows(
    tower: str,
    theirs: str,
    *,
    norms: tuple[str, str],
    qkv: Sequence[str] = (),
    out: str,
    mlp: Sequence[str],
    qkv_bias: bool = True,
) -> list[Row]:
    """Rows of the blocks of a transformer, by the names of their layers below `theirs`.

    Args:
        norms: that stand with the attention and with the MLP.
        qkv: one linear layer, or one each for queries, keys and values; none where they are no linear layers of torch.
        mlp: the maps into the hidden channels, two of a gated MLP, and last the one out of them.
    """
    ours = f"{tower}.blocks.block"
    attention = linear_rows(f"{ours}.attention.qkv", *(f"{theirs}.{name}" for name in qkv), bias=qkv_bias)
    return [
        *(attention if qkv else ()),
        *norm_rows(f"{ours}.norm1", f"{theirs}.{norms[0]}"),
        *linear_rows(f"{ours}.attention.out", f"{theirs}.{out}"),
        *norm_rows(f"{ours}.norm2", f"{theirs}.{norms[1]}"),
        *linear_rows(f"{ours}.mlp.up", *(f"{theirs}.{name}" for name in mlp[:-1])),
        *linear_rows(f"{ours}.mlp.down", f"{theirs}.{mlp[-1]}"),
    ]


Shapes = Mapping[str, tuple[int, ...]]


def read_parameters(source: Tensors, table: NameTable, shapes: Shapes) -> dict[str, np.ndarray]:
    """Our parameters by dotted path, float32; `shapes` are those that they must have.

    Raises InputError with a list of tensors that are missing, unknown, of a wrong shape, or not floating point.
    """
    source = source.renamed(table.aliases)
    check_tensors(source, table, shapes)
    parameters = {}
    for row in table.rows:
        names = row.names(shapes[row.ours])
        layers = [row.transform.to_ours([source.read(name) for name in group]) for group in names]
        parameters[row.ours] = np.stack(layers) if row.stacked else layers[0]
    return parameters


def check_tensors(source: Tensors, table: NameTable, shapes: Shapes) -> None:
    """Raises InputError as `read_parameters`; the names of `source` are those of the table."""
    stored = set(source.names)
    expected = _expected_tensors(table, shapes)
    known = {name for name in stored if name in expected or any(re.fullmatch(p, name) for p in table.ignored)}
    wrong = []
    for name in sorted(expected.keys() & stored):
        shape, kind = source.about(name)
        if shape != expected[name]:
            wrong.append(f"{name} of shape {shape} instead of {expected[name]}")
        elif kind not in _FLOATING:
            wrong.append(f"{name} of type {kind} instead of a floating-point one")
    missing, unknown = expected.keys() - stored, stored - known
    if prefix := common_prefix(missing, unknown):
        found = f"the prefix {prefix!r} before {sum(name.startswith(prefix) for name in unknown)} names"
        if others := sorted(name for name in unknown if not name.startswith(prefix)):
            found += f", beside {list_differences(others=others)}"
        raise InputError(source.path, "tensors", found, "names without it, and nothing but the model's tensors")
    if differences := list_differences(missing=missing, unknown=unknown, wrong=wrong):
        wanted = f"the {len(expected)} tensors that its configuration asks for"
        raise InputError(source.path, "tensors", differences, wanted)


def write_tensors(parameters: Mapping[str, np.ndarray], table: NameTable) -> dict[str, np.ndarray]:
    """The inverse of `read_parameters`: the checkpoint's tensors by name."""
    tensors = {}
    for row in table.rows:
        ours = parameters[row.ours]
        for layer, group in enumerate(row.names(ours.shape)):
            arrays = row.transform.to_theirs(ours[layer] if row.stacked else ours, len(group))
            tensors.update(zip(group, arrays, strict=True))
    return tensors


def _expected_tensors(table: NameTable, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor a checkpoint must have: the table's way back, run on arrays without memory."""
    if differ := {row.ours for row in table.rows} ^ set(shapes):
        raise AssertionError(f"the table and the model differ in {sorted(differ)}")
    empty = {path: np.broadcast_to(np.float32(0), shape) for path, shape in shapes.items()}
    return {name: array.shape for name, array in write_tensors(empty, table).items()}


def common_prefix(missing: Iterable[str], stored: Iterable[str]) -> str | None:
    """What stands before all missing names in the stored ones; None where that is not what keeps them apart."""
    missing, stored = list(missing), set(stored)
    if not missing:
        return None
    ends = [name.removesuffix(missing[0]) for name in stored if name.endswith(f".{missing[0]}")]
    return next((prefix for prefix in sorted(ends) if all(prefix + name in stored for name in missing)), None)


def list_differences(**named: Collection[str]) -> str:
    """One line such as "2 missing (a, b); 1 unknown (c)", empty where there are no differences."""

    def in_brackets(names: Collection[str]) -> str:
        return ", ".join(sorted(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    return "; ".join(f"{len(names)} {what} ({in_brackets(names)})" for what, names in named.items() if names)
