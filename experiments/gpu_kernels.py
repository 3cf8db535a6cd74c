"""Read the kernels of a program that XLA compiled for a GPU: how often each runs, its operations and its bytes.

    product       a matrix product, alone or with what XLA put into its kernel
    attention     cuDNN's
    collective    between devices; its bytes are those that leave one device (`hlo_cost`)
    other         everything else: element by element, reductions, copies, gathers

Bytes are operands and results of a kernel, each moved once between memory and chip; of an operand that a kernel only
slices or gathers from, the slices, and of a result that is a row put into a larger buffer, the row. What the second
level cache keeps from one kernel to the next is not taken off. A loop's kernels count once an iteration.
"""

import math
import re
from typing import NamedTuple

from hlo_cost import KINDS, bytes_sent_by, dimensions, dtype_of, sizes, split_computations

_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
# Nothing runs for these.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "after-all", "partition-id",
         "replica-id", "opt-barrier", "async-done", "async-update"}  # fmt: skip
_SLICES = ("dynamic-slice", "slice", "gather")


class Kernel(NamedTuple):
    """A kernel, or a collective, of a program.

    Attributes:
        name: of the instruction.
        source: the operation of the program that it stems from, as JAX names it.
        kind: `product`, `attention`, `collective`, `other`.
        runs: in one run of the program.
        flops, bytes: of one run.
        dtype: of a product's operands.
    """

    name: str
    source: str
    kind: str
    runs: int
    flops: float
    bytes: float
    dtype: str


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    operands: list[str]
    rest: str
    root: bool


def kernels(hlo: str, devices: int) -> list[Kernel]:
    """The kernels of `compiled.as_text()` for `devices` GPUs."""
    computations, entry = _parse(hlo)
    found: list[Kernel] = []

    def walk(name: str, runs: int) -> None:
        by_name = {each.name: each for each in computations[name]}
        for each in computations[name]:
            opcode = each.opcode.removesuffix("-start")
            if each.opcode in _FREE or each.opcode.endswith("-done"):
                continue
            if opcode == "while":
                trips = re.search(r'known_trip_count":\{"n":"(\d+)"', each.rest)
                if trips is None:
                    raise ValueError(f"loop {each.name}: XLA knows no trip count")
                walk(_called(each, "body"), runs * int(trips[1]))
            elif opcode in ("call", "async"):
                walk(_called(each, "to_apply" if opcode == "call" else "calls"), runs)
            elif opcode in KINDS:
                sent = bytes_sent_by(opcode, each.shape, each.rest, devices, started=each.opcode != opcode)
                found.append(Kernel(each.name, _source(each), "collective", runs, 0.0, sent, ""))
            else:
                found.append(_kernel(each, by_name, computations, runs))

    walk(entry, 1)
    return found


def _kernel(each: _Instruction, by_name: dict, computations: dict, runs: int) -> Kernel:
    moved = sum(_bytes(by_name[operand].shape) for operand in each.operands) + _bytes(each.shape)
    flops, dtype, kind = 0.0, "", "other"
    if each.opcode == "fusion":
        inner = computations[_called(each, "calls")]
        moved, (flops, dtype) = _fusion_bytes(inner), _products(inner, computations)
    elif each.opcode == "dot" or "__cublas" in each.rest:
        flops, dtype = _product(each, by_name)
    elif "__cudnn$fmha" in each.rest:
        kind, dtype = "attention", "bf16"
        batch, heads, *sides = map(
            int, re.findall(r'"dimensions": ?\[(.*?)\]', each.rest)[0].replace('"', "").split(",")
        )
        size = dimensions(by_name[each.operands[0]].shape)[-1]
        flops = (5 if "Backward" in each.rest else 2) * 2.0 * batch * heads * math.prod(sides) * size
    elif each.opcode in _SLICES or each.opcode == "dynamic-update-slice":
        changed = each.shape if each.opcode in _SLICES else by_name[each.operands[1]].shape
        moved = 2 * _bytes(changed)
    return Kernel(each.name, _source(each), "product" if flops and kind == "other" else kind, runs, flops, moved, dtype)


def _fusion_bytes(inner: list[_Instruction]) -> float:
    """Of a fused computation: what it reads of each operand, and what it writes."""
    by_name = {each.name: each for each in inner}
    users: dict[str, list[_Instruction]] = {}
    for each in inner:
        for operand in dict.fromkeys(each.operands):
            users.setdefault(operand, []).append(each)

    def through(name: str) -> list[_Instruction]:
        """The users, behind those that only rename."""
        return [last for user in users.get(name, ())
                for last in (through(user.name) if user.opcode == "bitcast" else [user])]  # fmt: skip

    def origin(name: str) -> str:
        while by_name[name].opcode == "bitcast":
            name = by_name[name].operands[0]
        return name

    moved = 0.0
    for each in inner:
        if each.opcode == "parameter":
            whole, read = _bytes(each.shape), 0.0
            for user in through(each.name):
                if user.opcode == "dynamic-update-slice" and origin(user.operands[0]) == each.name:
                    continue
                sliced = user.opcode in _SLICES and origin(user.operands[0]) == each.name
                read += _bytes(user.shape) if sliced else whole
            moved += min(read, whole)
    roots = [each for each in inner if each.root]
    for root in (by_name[name] for name in (roots[0].operands if roots[0].opcode == "tuple" else [roots[0].name])):
        last = by_name[origin(root.name)]
        moved += _bytes(by_name[last.operands[1]].shape if last.opcode == "dynamic-update-slice" else root.shape)
    return moved


def _products(inner: list[_Instruction], computations: dict) -> tuple[float, str]:
    """Operations of the products in a fused computation, and what they multiply."""
    by_name, flops, dtype = {each.name: each for each in inner}, 0.0, ""
    for each in inner:
        if each.opcode == "dot":
            more, dtype = _product(each, by_name)
            flops += more
        elif each.opcode == "fusion":
            more, inside = _products(computations[_called(each, "calls")], computations)
            flops, dtype = flops + more, inside or dtype
    return flops, dtype


def _product(each: _Instruction, by_name: dict) -> tuple[float, str]:
    left = by_name[each.operands[0]].shape
    contracted = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:] ?[\[{]([\d",]*)', each.rest)[1].replace('"', "")
    depth = math.prod(dimensions(left)[int(axis)] for axis in contracted.split(",") if axis)
    return 2.0 * math.prod(dimensions(each.shape)) * depth, dtype_of(left)


def _parse(hlo: str) -> tuple[dict[str, list[_Instruction]], str]:
    computations, entry = split_computations(hlo)
    return {
        name: [_instruction(line, found) for line in lines if (found := _LINE.match(line))]
        for name, lines in computations.items()
    }, entry


def _instruction(line: str, found: re.Match) -> _Instruction:
    shape, after = _balanced(line, found.end())
    opcode, _, _ = line[after:].strip().partition("(")
    operands, end = _balanced(line, line.index("(", after))
    names = re.findall(r"%([\w.\-]+)", operands)
    return _Instruction(found[2], shape, opcode, names, line[end:], found[1] is not None)


def _balanced(line: str, start: int) -> tuple[str, int]:
    """A type, or what stands in parentheses, and where it ends."""
    if line[start] != "(":
        end = line.index(" ", start)
        return line[start:end], end
    depth = 0
    for place in range(start, len(line)):
        depth += (line[place] == "(") - (line[place] == ")")
        if not depth:
            return line[start : place + 1], place + 1
    raise ValueError(f"parentheses do not close: {line[:80]}")


def _called(each: _Instruction, key: str) -> str:
    return re.search(rf"{key}=%?([\w.\-]+)", each.rest)[1]


def _source(each: _Instruction) -> str:
    found = re.search(r'op_name="([^"]*)"', each.rest)
    return found[1] if found else ""


def _bytes(shapes: str) -> int:
    return sum(sizes(shapes))
