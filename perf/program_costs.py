"""Count what a compiled program computes and moves, from its text (`compiled.as_text()`) for TPUs and GPUs."""

import dataclasses
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+\w*)\[([\d,]*)\](\{[^}]*\})?")
# Instructions that only name arrays, and the ends of those that their starts count.
_FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "call", "conditional", "after-all",
         "optimization-barrier", "partition-id", "iota"}  # fmt: skip
_SLICES = {"dynamic-slice", "slice", "gather"}
_ELEMENTWISE = set(
    "abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential exponential-minus-one floor log"
    " log-plus-one logistic maximum minimum multiply negate not or popcnt power remainder round-nearest-afz"
    " round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan"
    " tanh xor".split()
)


@dataclasses.dataclass
class Instruction:
    """Instruction of a compiled program."""

    is_root: bool
    name: str
    shape: str
    opcode: str
    operands: list[str]
    attributes: str
    literal: str

    def called(self, role: str) -> str:
        """Return the computation that has this role, empty for none."""
        match = re.search(rf"\b{role}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else ""

    def branches(self) -> list[str]:
        """Return the computations between which a conditional chooses."""
        listed = re.search(r"branch_computations=\{(.*?)\}", self.attributes)
        if listed:
            return re.findall(r"[\w.\-]+", listed[1])
        return [self.called(f"{each}_computation") for each in ("true", "false")]


class Costs:
    """FLOPs, vector operations and bytes of one run of a program, from its text."""

    def __init__(self, program: str):
        self.computations: dict[str, list[Instruction]] = defaultdict(list)
        entry = computation = ""
        for line in program.splitlines():
            if header := _HEADER.match(line):
                computation = header[2]
                entry = computation if header[1] else entry
            elif match := _LINE.match(line):
                root, name, shape, opcode, operands, attributes = match.groups()
                names = re.findall(r"%([\w.\-]+)", operands)
                self.computations[computation].append(
                    Instruction(bool(root), name, shape, opcode, names, attributes, operands)
                )
        self.by_name = {each.name: each for each in (i for body in self.computations.values() for i in body)}
        self.bytes_by_array = self._sums(entry, True)
        sums = (self.bytes_by_array.pop(name, 0.0) for name in ("flops", "vector", "bytes"))
        self.flops, self.vector, self.bytes = sums

    def _sums(self, computation: str, reads_memory: bool) -> Counter:
        """Return flops, vector operations and bytes of a computation, and its bytes by array (`bf16[8,128]`)."""
        sums: Counter = Counter()
        for each in self.computations[computation]:
            sums["flops"] += self._flops(each)
            sums["vector"] += self._vector_operations(each)
            if each.opcode == "while":
                body, turns = self._sums(each.called("body"), reads_memory), self._turns(each)
                sums.update({name: turns * value for name, value in body.items()})
                continue
            if each.opcode == "conditional":
                branches = [self._sums(name, reads_memory) for name in each.branches()]
                sums.update(max(branches, key=lambda branch: branch["flops"] + branch["vector"] + branch["bytes"]))
                continue
            if reads_memory and each.opcode not in _FREE and not each.opcode.endswith("-done"):
                for array, size in self._moved(each):
                    sums["bytes"] += size
                    sums[array] += size
            inner = each.called("calls") or (each.opcode == "call" and each.called("to_apply"))
            if inner:
                sums.update(self._sums(inner, reads_memory and each.opcode == "call"))
        return sums

    def _vector_operations(self, each: Instruction) -> float:
        if each.opcode in _ELEMENTWISE:
            return math.prod(_lengths(each.shape))
        return math.prod(_lengths(self.by_name[each.operands[0]].shape)) if each.opcode == "reduce" else 0

    def _turns(self, loop: Instruction) -> float:
        """Return how often a loop runs: as XLA notes, or from constants at which its counter starts, steps and ends."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        compared, result = (self._root(loop.called(role)) for role in ("condition", "body"))
        try:
            counter, limit = (self.by_name[name] for name in compared.operands)
            place = int(re.search(r"index=(\d+)", counter.attributes)[1])
            start = self._constant(self.by_name[loop.operands[0]].operands[place])
            step = self._constant(result.operands[place])
            # A limit that the loop carries is an argument of the program.
            last = math.nan if limit.opcode == "get-tuple-element" else self._constant(limit.name)
            return math.ceil((last - start) / step)
        except (TypeError, ValueError, IndexError, ZeroDivisionError):
            print(f"loop {loop.name}: number of turns unknown, counted once", file=sys.stderr)
            return 1

    def _constant(self, name: str) -> float:
        each = self.by_name[name]
        if each.opcode in ("add", "copy", "bitcast"):
            return sum(map(self._constant, each.operands))
        return int(each.literal) if each.opcode == "constant" else 0 if each.opcode == "get-tuple-element" else math.nan

    def _root(self, computation: str) -> Instruction:
        return next(each for each in self.computations[computation] if each.is_root)

    def _moved(self, each: Instruction) -> Iterator[tuple[str, float]]:
        """Yield the arrays that an instruction reads from memory or writes to it, each with the bytes moved."""
        if each.opcode in ("copy-start", "slice-start"):
            # Results are the destination and the source, of slices in the other order.
            place = 0 if each.opcode == "copy-start" else 1
            size = _array_bytes(*_ARRAY.findall(each.shape)[place][:2])
            in_memory = [_sizes(self.by_name[each.operands[0]].shape)[0], _sizes(each.shape)[place]]
            yield _names(each.shape)[place], size * sum(map(bool, in_memory))
            return
        if each.opcode == "dynamic-update-slice":
            update = self.by_name[each.operands[1]].shape
            yield _names(update)[0], 2 * sum(_sizes(update))
            return
        inner = self.computations.get(each.called("calls"), [])
        parameters = [i for i in inner if i.opcode == "parameter"]
        for number, operand in enumerate(each.operands):
            read = self._read(operand, inner, next((p for p in parameters if int(p.literal) == number), None))
            if each.opcode in _SLICES:
                read = min(read, sum(_sizes(each.shape)))
            if read:
                yield _names(self.by_name[operand].shape)[0], read
        written = self._written(each, inner) if inner else _sizes(each.shape)
        yield from zip(_names(each.shape), written, strict=True)

    def _read(self, operand: str, inner: list[Instruction], parameter: Instruction | None) -> float:
        """Return what an instruction reads of an operand: of a fusion that only slices it, the slices."""
        size = sum(_sizes(self.by_name[operand].shape))
        return size if parameter is None else min(size, self._bytes_used(parameter.name, inner))

    def _bytes_used(self, name: str, inner: list[Instruction]) -> float:
        """Return the bytes of a value that a fusion uses: infinity if not only slices of it, in nested fusions too."""
        total = 0.0
        for each in (each for each in inner if name in each.operands):
            if each.opcode in ("bitcast", "reshape"):
                total += self._bytes_used(each.name, inner)
            elif each.opcode in _SLICES and each.operands.index(name) == 0:
                total += _all_bytes(each.shape)
            elif each.opcode == "fusion":
                nested = self.computations[each.called("calls")]
                places = [place for place, operand in enumerate(each.operands) if operand == name]
                inside = [each for each in nested if each.opcode == "parameter" and int(each.literal) in places]
                total += sum(self._bytes_used(parameter.name, nested) for parameter in inside)
            elif each.opcode != "dynamic-update-slice" or each.operands.index(name) != 0:
                return math.inf  # updated in place, it is not read
        return total

    def _written(self, each: Instruction, inner: list[Instruction]) -> list[float]:
        """Return what a fusion writes of each result: of an array that it updates in place, the update."""
        root = next(i for i in inner if i.is_root)
        results = [self.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
        sizes = _sizes(each.shape)
        written = sizes.copy()
        for place, (size, result) in enumerate(zip(sizes, results, strict=False)):
            while result.opcode in ("bitcast", "reshape", "fusion"):
                inside = self._root(result.called("calls")) if result.opcode == "fusion" else None
                if inside is not None and inside.opcode == "tuple":
                    break
                result = inside or self.by_name[result.operands[0]]
            if size and result.opcode == "dynamic-update-slice":
                written[place] = min(size, _all_bytes(self.by_name[result.operands[1]].shape))
        return written

    def _passes(self, each: Instruction) -> int:
        """Return the passes of bfloat16 of a product."""
        precision = re.search(r"operand_precision=\{(\w+)", each.attributes)
        is_float32 = all(self.by_name[name].shape.startswith("f32") for name in each.operands[:2])
        return {"highest": 6, "high": 3}.get(precision[1], 1) if precision and is_float32 else 1

    def _flops(self, each: Instruction) -> float:
        if each.opcode == "dot":
            axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.attributes)[1]
            left = _lengths(self.by_name[each.operands[0]].shape)
            products = math.prod(_lengths(each.shape)) * math.prod(left[int(axis)] for axis in axes.split(",") if axis)
            return 2 * self._passes(each) * products
        if '"__cublas$' in each.attributes:
            axes = re.search(r'"lhs_contracting_dimensions": *\[(.*?)\]', each.attributes)[1]
            left = _lengths(self.by_name[each.operands[0]].shape)
            depth = math.prod(left[int(axis)] for axis in re.findall(r"\d+", axes))
            return 2 * math.prod(_lengths(each.shape)) * depth
        if attention := re.search(r'"__cudnn\$fmhaSoftmax(Backward)?"', each.attributes):
            # Forward two products of the size of the logits; backward the first of them again, and two for each.
            dimensions = re.search(r'"intermediate_tensor_shape": *\{[^{]*?"dimensions": *\[(.*?)\]', each.attributes)[
                1
            ]
            logits = math.prod(int(length) for length in re.findall(r"\d+", dimensions))
            return 2 * (5 if attention[1] else 2) * logits * _lengths(self.by_name[each.operands[0]].shape)[-1]
        if each.opcode != "convolution":
            return 0
        labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.attributes)
        left, right = (_lengths(self.by_name[name].shape) for name in each.operands[:2])
        out = _lengths(each.shape)
        groups = re.search(r"batch_group_count=(\d+)", each.attributes)
        window = re.search(r"window=\{(.*?)\}", each.attributes)
        options = dict(re.findall(r"(\w+)=([\dx_\-]+)", window[1])) if window else {}
        products = right[labels[2].index("i")] * out[labels[3].index("b")] * out[labels[3].index("f")]
        for place in range(sum(label.isdigit() for label in labels[1])):
            arrays = zip((left, right, out), labels.groups(), strict=True)
            lengths = [sizes[label.index(str(place))] for sizes, label in arrays]
            of_axis = {key: value.split("x")[place] for key, value in options.items()}
            products *= _valid_positions(*lengths, of_axis)
        return 2 * self._passes(each) * products / (int(groups[1]) if groups else 1)


def _valid_positions(inputs: int, kernel: int, outputs: int, options: dict[str, str]) -> int:
    """Count the pairs of output and kernel position on an axis whose input exists: not padding, not a hole."""
    stride, dilation, holes = (int(options.get(key, 1)) for key in ("stride", "rhs_dilate", "lhs_dilate"))
    before = int(options.get("pad", "0_0").split("_")[0])
    position = np.arange(outputs)[:, None] * stride - before + np.arange(kernel) * dilation
    return int(((position >= 0) & (position % holes == 0) & (position // holes < inputs)).sum())


def _lengths(shape: str) -> list[int]:
    return [int(length) for length in _ARRAY.search(shape)[2].split(",") if length]


def _names(shape: str) -> list[str]:
    return [f"{dtype}[{lengths}]" for dtype, lengths, _ in _ARRAY.findall(shape)]


def _sizes(shape: str) -> list[float]:
    """Return the bytes in the memory of the chip of each array of a shape."""
    arrays = _ARRAY.findall(shape)
    return [0 if "S(" in layout else _array_bytes(dtype, lengths) for dtype, lengths, layout in arrays]


def _all_bytes(shape: str) -> float:
    return sum(_array_bytes(dtype, lengths) for dtype, lengths, _ in _ARRAY.findall(shape))


def _array_bytes(dtype: str, lengths: str) -> float:
    bits = 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])
    return bits / 8 * math.prod(int(length) for length in lengths.split(",") if length)
