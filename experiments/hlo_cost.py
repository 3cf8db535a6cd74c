"""Count the bytes that a compiled program sends between devices, from its HLO text; loops count once per iteration.

    all-gather, all-to-all   (g - 1) / g of the result          g devices in a group, rings of neighbours
    reduce-scatter           (g - 1) times the result
    all-reduce               2 (g - 1) / g of the result
    collective-permute       the result

The counts are bytes that leave one device with the usual ring algorithms (Patarasuk and Yuan, 2009,
doi 10.1016/j.jpdc.2008.09.002). A loop runs as often as XLA's `known_trip_count` says; a TPU program has none:
its counter goes from the constant it starts with, by the constant its body adds, to the constant of its condition.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}  # others have them in their names: u8, s4, f8e4m3fn, f32
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(")
_SHAPE = re.compile(r"\b(pred|token|opaque|bf16|[suf]\d+\w*)\[([\d,]*)\]")
_CONSTANT = re.compile(r"[su]32\[\]\S* constant\((\d+)\)")
# On TPUs a fusion whose name begins so is a reduce-scatter: an all-reduce of which each device keeps its slice.
_SCATTERED = "all-reduce-scatter"
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations|async_execution_thread)=\{?%?([\w.\-]+)")


def bytes_sent(hlo: str, devices: int) -> dict[str, float]:
    """Bytes that leave one device in one run of the program, by kind of collective operation.

    Args:
        hlo: `compiled.as_text()`.
        devices: number in the program; a collective without groups spans all of them.
    """
    sent: Counter = Counter()
    for each in collectives(hlo, devices):
        sent[each.kind] += each.runs * _share(each.kind, each.group) * each.size
    return {kind: sent[kind] for kind in KINDS if sent[kind]}


def bytes_sent_by(kind: str, shape: str, rest: str, devices: int, *, started: bool) -> float:
    """Bytes that leave one device in one collective, from the type of its result and the rest of its line."""
    return _share(kind, _group(rest, devices)) * _result_bytes(shape, started=started, kind=kind)


class Collective(NamedTuple):
    """A collective operation of a program.

    Attributes:
        runs: in one run of the program.
        size: bytes of its result.
        group: devices that take part.
        started: whether the program goes on while it runs.
    """

    kind: str
    runs: int
    size: int
    group: int
    started: bool


def collectives(hlo: str, devices: int) -> list[Collective]:
    """The collective operations of a program, as `bytes_sent` counts them."""
    computations, entry = split_computations(hlo)
    made = []

    def walk(name: str, times: int, seen: set[tuple[str, ...]]) -> None:
        for line in computations.get(name, ()):
            if found := _COLLECTIVE.search(line):
                # A TPU program spreads a collective over a chain of fusions, each of which shows the whole result.
                chain = re.search(r'channel_id=(\d+),.*chain_id="(\d+)"', line)
                if chain and chain.groups() in seen:
                    continue
                seen |= {chain.groups()} if chain else set()
                started = found[3] is not None
                kind, group = found[2], _group(line, devices)
                size = _result_bytes(found[1], started=started, kind=kind)
                if name.startswith(_SCATTERED):
                    kind, size = "reduce-scatter", size // group
                made.append(Collective(kind, times, size, group, started))
            elif " while(" in line:
                body = re.search(r"body=%?([\w.\-]+)", line)[1]
                walk(body, times * _trips(computations, name, line), set())
            elif "=" in line and (called := _CALLED.search(line)):
                walk(called[1], times, seen)

    walk(entry, 1, set())
    return made


def split_computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The lines of every computation of a program by name, and the name of the one that it enters."""
    computations: dict[str, list[str]] = {}
    current, entry = None, ""
    for line in hlo.splitlines():
        if found := _HEAD.match(line):
            current = computations.setdefault(found[2], [])
            entry = found[2] if found[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(line)
    return computations, entry


def dimensions(shape: str) -> list[int]:
    """The lengths of the axes of the first array in a type."""
    return _lengths(_SHAPE.search(shape)[2])


def dtype_of(shape: str) -> str:
    """The dtype of the first array in a type, as HLO writes it."""
    return _SHAPE.search(shape)[1]


def sizes(shapes: str) -> list[int]:
    """Bytes of every array in a type; sub-byte numbers are packed."""
    return [math.ceil(_bits(dtype) * math.prod(_lengths(lengths)) / 8) for dtype, lengths in _SHAPE.findall(shapes)]


def _bits(dtype: str) -> int:
    return _BITS[dtype] if dtype in _BITS else int(re.search(r"\d+", dtype)[0])


def _lengths(listed: str) -> list[int]:
    return [int(length) for length in listed.split(",") if length]


def _trips(computations: dict[str, list[str]], name: str, loop: str) -> int:
    """How often a loop of the computation `name` runs.

    Raises:
        ValueError: its counter is not a constant plus a constant each time, below a constant.
    """
    if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop):
        return int(known[1])
    condition = computations[re.search(r"condition=%?([\w.\-]+)", loop)[1]]
    body = computations[re.search(r"body=%?([\w.\-]+)", loop)[1]]
    place, limit = _counter_of(condition)
    start = _sum_of_constants(computations[name], _operands(loop)[0], place, counts=False)
    step = _sum_of_constants(body, _defined(next(line for line in body if "ROOT " in line)), place, counts=True)
    if None in (place, limit, start, step) or step < 1:
        raise ValueError(f"loop {loop.strip()[:60]}: found start {start}, step {step}, limit {limit}; wanted constants")
    return max(0, math.ceil((limit - start) / step))


def _counter_of(condition: list[str]) -> tuple[int | None, int | None]:
    """The element of a loop's state that its condition compares, and the constant above it; else (None, None)."""
    lines = {_defined(line): line for line in condition}
    root = next(line for line in condition if "ROOT " in line)
    if " compare(" not in root or "direction=LT" not in root:
        return None, None
    element, limit = (lines.get(each, "") for each in _operands(root))
    index, constant = re.search(r"index=(\d+)", element), _CONSTANT.search(limit)
    return (int(index[1]), int(constant[1])) if index and constant else (None, None)


def _sum_of_constants(computation: list[str], tuple_name: str, place: int | None, *, counts: bool) -> int | None:
    """The constants that are added up to one element of a tuple; where it `counts`, to the same one of its argument."""
    lines = {_defined(line): line for line in computation}

    def of(name: str) -> int | None:
        line = lines.get(name, "")
        if constant := _CONSTANT.search(line):
            return int(constant[1])
        if counts and " get-tuple-element(" in line and re.search(rf"index={place}\b", line):
            return 0
        if " add(" not in line and " copy(" not in line:
            return None
        parts = [of(each) for each in _operands(line)]
        return None if None in parts else sum(parts)

    made = lines.get(tuple_name, "")
    return of(_operands(made)[place]) if place is not None and " tuple(" in made else None


def _defined(line: str) -> str:
    return line.partition("=")[0].replace("ROOT", "").strip().removeprefix("%")


def _operands(line: str) -> list[str]:
    """The names in an operation's parentheses."""
    inside = re.search(r" [\w\-]+\(((?:%?[\w.\-]+|[, ]|/\*.*?\*/)*)\)(?:,|$)", line)[1]
    return re.findall(r"%?([\w.\-]+)", re.sub(r"/\*.*?\*/", "", inside))


def _result_bytes(shapes: str, *, started: bool, kind: str) -> int:
    if not started or kind == "all-reduce":
        return sum(sizes(shapes))
    # Another -start returns (operand, result, context); several in one have tuples of operands, of results, or of both.
    return sum(sizes(_elements(shapes)[1]))


def _elements(shapes: str) -> list[str]:
    """The types in a tuple."""
    found, depth = [""], 0
    for letter in shapes[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        found = [*found, ""] if letter == "," and not depth else [*found[:-1], found[-1] + letter]
    return found


def _group(line: str, devices: int) -> int:
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(found[2])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return found[1].count(",") + 1
    if found := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes_of = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes_of[axis]) for axis in re.findall(r"'(\w+)'", found[2]))
    return devices


def _share(kind: str, group: int) -> float:
    shares = {"all-reduce": 2 * (group - 1) / group, "reduce-scatter": group - 1, "collective-permute": 1}
    return shares.get(kind, (group - 1) / group)
