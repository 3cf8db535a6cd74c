"""What a step takes of a device, from its compiled program; TPUs and H100s are compiled for without one.

    seconds = max(operations / peak, bytes / bandwidth of memory, permuted / one link + other sent / all links)

Operations and bytes are of XLA's cost analysis, with loops written out, of which it counts one run; to them is added
what libraries compute (cuBLAS's products, cuDNN's attention), of which it counts nothing. Bytes sent are those of ring
algorithms (Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002), of an operand's bytes among g devices:
all-gather g - 1, all-reduce 2 (g - 1) / g, reduce-scatter and all-to-all (g - 1) / g, collective-permute 1.
"""

import contextlib
import itertools
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rococo_jax.errors import InputError, first_line
from rococo_jax.runtime import AXES, arranged, make_mesh
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs.batches import text_length
from rococo_jax.training.program import bytes_of_device, compile_step, memory_of, of_kind, peak_flops, step_bytes
from rococo_jax.training.step import batch_shapes, check_batch, lower_step

# Bytes that programs may use (as libtpu says; 90 % on GPUs), bytes/s of memory, and out of a chip over all links and
# over one, one way: docs.cloud.google.com/tpu/docs/v5e, v5p, v6e; H100 SXM's data sheet.
CHIPS = {
    "TPU v5 lite": (15.75 * 2**30, 819e9, 200e9, 50e9),
    "TPU v5": (95.74 * 2**30, 2765e9, 600e9, 100e9),
    "TPU v6 lite": (31.25 * 2**30, 1640e9, 400e9, 100e9),
    "NVIDIA H100": (0.9 * 84929347584, 3352e9, 450e9, 450e9),
}
# Beyond a node of GPUs a ring waits for its slowest hop: 400 Gb/s a GPU, data sheet of the DGX H100.
NODE, BETWEEN_NODES = 8, 50e9
_ASSUMED = "bfloat16 peak, full bandwidths and overlap, every kernel reads and writes memory"
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
# Name, shape, opcode, operands, attributes.
_LINE = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$", re.M)


def plan(config: ConfigDict, topology: str | None = None) -> dict[str, Any]:
    """Figures of a step on the devices at hand, or on those of a topology: `v5e:4x4`, `h100:8`.

    Raises InputError: there is no such topology or no compiler for it, or the step does not fit.
    """
    devices = _devices_of(topology) if topology else jax.devices()
    check_batch(config, len(devices))
    mesh, kind, chip = Mesh(arranged(devices, config.fsdp), AXES), devices[0].device_kind, of_kind(CHIPS, devices[0])
    encoder = starting_encoder(config, make_mesh(jax.local_devices()[:1]))
    tokens, rows = text_length(config.data.text_length, encoder), NamedSharding(mesh, PartitionSpec(AXES))
    shapes = batch_shapes(config, encoder.spec, tokens, encoder.preprocessing)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows), shapes)
    limit = chip[0] if topology and chip else memory_of(jax.local_devices()[0])
    with _cudnn_in_one_line():
        lowered, start = lower_step(config, encoder.spec, encoder.preprocessing, mesh, tokens), time.perf_counter()
        compiled = compile_step(lowered, batch, config, limit)
    seconds, sizes = time.perf_counter() - start, compiled.memory_analysis()
    program = ProgramCosts(compiled.as_text(), len(devices))
    held = {"arguments": sizes.argument_size_in_bytes, "temporaries": sizes.temp_size_in_bytes,
            "with_next_batch": step_bytes(compiled) + bytes_of_device(batch), "limit": limit}  # fmt: skip
    figures = {"devices": len(devices), "device": kind, "pairs": config.batch_size, "text_length": tokens,
               "programs": 1, "compile_seconds": seconds, "memory": held,
               "operations": program.flops, "bytes": program.bytes, "not_counted": program.unknown,
               "collectives": dict(sorted(program.collectives.items()))}  # fmt: skip
    if chip and (peak := peak_flops(devices[0])):
        _, bandwidth, links, link = chip
        link = BETWEEN_NODES if kind.startswith("NVIDIA") and len(devices) > NODE else link
        times = [row["sent"] / (link if "permute" in name else links) for name, row in program.collectives.items()]
        parts = {"operations": program.flops / peak, "bytes": program.bytes / bandwidth, "sent": sum(times)}
        figures |= {"roofline_seconds": parts, "step_seconds": max(parts.values())}
        figures |= {"run_hours": max(parts.values()) * config.steps / 3600, "assumed": _ASSUMED}
    return figures


def describe(figures: Mapping[str, Any]) -> Iterator[str]:
    """Lines of name and value; G is 1e9."""
    for name, value in figures.items():
        for of, part in value.items() if isinstance(value, dict) else [("", value)]:
            parts = part if isinstance(part, dict) else {"": part}
            texts = [f"{key} {_short(number)}".strip() for key, number in parts.items()]
            yield f"{name} {of}".ljust(34) + " " + ", ".join(texts)


def _short(value: Any) -> str:
    if isinstance(value, int | float) and value >= 1e6:
        return f"{value / 1e9:,.3f} G"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _devices_of(topology: str) -> list[Any]:
    gpus = re.fullmatch(r"h100:(\d+)", topology)
    nodes = max(1, int(gpus[1]) // NODE) if gpus else 0
    given = {"target_config": (Path(__file__).parent / "assets" / "h100.txtpb").read_text(),
             "topology": f"1x{nodes}x{int(gpus[1]) // nodes}"} if gpus else {}  # fmt: skip
    try:
        return list(topologies.get_topology_desc(topology, "cuda" if gpus else "tpu", **given).devices)
    except (RuntimeError, NotImplementedError) as error:
        wanted = "v5e:4x4 and the like with jax[tpu] installed, or h100:8 with jax[cuda12]"
        raise InputError("topology", "devices", f"{topology!r} ({first_line(error)})", wanted) from None


@contextlib.contextmanager
def _cudnn_in_one_line() -> Iterator[None]:
    """Raises InputError where JAX's plugin for CUDA is installed without cuDNN, which lowering and compiling ask."""
    try:
        yield
    except RuntimeError as error:
        if "cudnn" not in str(error).lower():
            raise
        wanted = "cuDNN beside JAX's plugin for CUDA: pip install 'jax[cuda12]'"
        raise InputError("topology", "cuDNN", first_line(error), wanted) from None


class ProgramCosts:
    """Costs of one run of a program, `compiled.as_text()`, on one of its devices.

    Attributes:
        flops, bytes: operations, and bytes read and written.
        collectives: runs of each kind and dtype, bytes of their operands, and bytes that leave the device.
        unknown: runs of kernels of which nothing is counted, and loops counted once as their length is not known.
    """

    def __init__(self, hlo: str, devices: int):
        from jax._src.lib import _jax, xla_client
        from jax._src.lib import hlo as reader  # the public way reads programs that are loaded

        self.devices, self.unknown = devices, Counter()
        self.collectives: dict[str, Counter] = defaultdict(Counter)
        self.lines = {line[0]: line for line in _LINE.findall(hlo)}  # names are unique in a program
        computation = r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{$.*?^  ROOT %?([\w.\-]+) = .*?^\}$"
        self.roots = {each[1]: each[2] for each in re.finditer(computation, hlo, re.M | re.S)}
        hlo = re.sub(r"^  (ROOT )?%?([\w.\-]+) = .* while\(.*$", self._written_out, hlo, flags=re.M)
        cost = _jax.hlo_module_cost_analysis(xla_client.make_cpu_client(), reader.hlo_module_from_text(hlo))
        self.flops, self.bytes = cost["flops"], cost["bytes accessed"]
        self.computations = {each[1]: _LINE.findall(each[0]) for each in re.finditer(computation, hlo, re.M | re.S)}
        self._count(re.search(r"^ENTRY %?([\w.\-]+)", hlo, re.M)[1], set())

    def _written_out(self, loop: re.Match) -> str:
        """As many calls of a loop's body as it runs, each of the result of the one before."""
        root, name = loop[1] or "", loop[2]
        _, shape, _, inside, rest = self.lines[name]
        values = [*_names(inside), *(f"{name}.run{run}" for run in range(1, self._trips(inside, rest))), name]
        calls = [f"  %{after} = {shape} call(%{before}), to_apply=%{_called('body', rest)}"
                 for before, after in itertools.pairwise(values)]  # fmt: skip
        return "\n".join([*calls[:-1], f"  {root}{calls[-1].strip()}"])

    def _trips(self, inside: str, rest: str) -> int:
        """How often a loop runs: where XLA does not say (TPUs), its counter begins, grows and ends by constants."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', rest):
            return int(known[1])
        compared, made = (self.lines[self.roots[_called(part, rest)]] for part in ("condition", "body"))
        counter, limit = _names(compared[3])
        try:
            place = int(re.search(r"index=(\d+)", self.lines[counter][4])[1])
            start, step = (self._constant(_names(each[3])[place]) for each in (self.lines[_names(inside)[0]], made))
            return math.ceil((self._constant(limit) - start) / step)
        except (TypeError, ValueError, ZeroDivisionError):
            self.unknown["loop"] += 1
            return 1

    def _constant(self, name: str) -> int | float:
        """The constants that are added up to a value, a loop's counter being 0; nan where it is something else."""
        _, _, opcode, inside, _ = self.lines[name]
        if opcode in ("add", "copy"):
            return sum(map(self._constant, _names(inside)))
        return int(inside) if opcode == "constant" else 0 if opcode == "get-tuple-element" else math.nan

    def _count(self, name: str, chains: set[tuple[str, ...]]) -> None:
        """Count the collectives and library calls of a computation and of those it calls."""
        for _, shape, opcode, inside, rest in self.computations[name]:
            kind, called = opcode.removesuffix("-start"), _called("calls|to_apply", rest)
            if kind in KINDS:
                # A TPU program spreads a collective over a chain of fusions, each of which shows the whole operand.
                chain = set(re.findall(r'(channel_id=\d+),.*(chain_id="\d+")', rest))
                if not chain or chain - chains:
                    # On TPUs an all-reduce of which each device keeps its slice.
                    kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else kind
                    self._count_collective(kind, self._shapes(inside), rest)
                chains |= chain
            elif kind == "custom-call":
                self._count_library_call(shape, self._shapes(inside), rest)
            elif called:
                self._count(called, chains if kind == "fusion" else set())

    def _shapes(self, inside: str) -> list[str]:
        return [self.lines[each][1] for each in _names(inside)]

    def _count_collective(self, kind: str, operands: list[str], rest: str) -> None:
        size, group = sum(map(_bytes, operands)), _group(rest, self.devices)
        share = {"all-gather": group, "all-reduce": 2}.get(kind, 1) * (group - 1) / group
        dtypes = "+".join(sorted({dtype for dtype, _ in _arrays(" ".join(operands))}))
        sent = size * (1 if kind == "collective-permute" else share)
        self.collectives[f"{kind} {dtypes}"].update({"runs": 1, "bytes": size, "sent": sent})

    def _count_library_call(self, shape: str, operands: list[str], rest: str) -> None:
        if "__cublas" in rest:
            axes = re.findall(r"\d+", re.search(r'lhs_contracting_dimensions":\[(.*?)\]', rest)[1])
            depth = math.prod(_arrays(operands[0])[0][1][int(axis)] for axis in axes)
            self.flops += 2 * math.prod(_arrays(shape)[0][1]) * depth
        elif "__cudnn$fmha" in rest:  # two products forward, five backward
            weights = re.findall(r"\d+", re.search(r'"dimensions": ?\[(.*?)\]', rest)[1])
            products = 5 if "Backward" in rest else 2
            self.flops += 2 * products * math.prod(map(int, weights)) * _arrays(operands[0])[0][1][-1]
        else:
            self.unknown.update(re.findall(r'custom_call_target="(tpu_custom_call|__[^"]*|triton[^"]*)"', rest))
            return
        self.bytes += sum(map(_bytes, [*operands, shape]))


def _called(role: str, rest: str) -> str:
    found = re.search(rf"\b(?:{role})=%?([\w.\-]+)", rest)
    return found[1] if found else ""


def _names(inside: str) -> list[str]:
    return re.findall(r"%([\w.\-]+)", inside)


def _arrays(shape: str) -> list[tuple[str, list[int]]]:
    found = re.findall(r"\b(pred|bf16|[suf]\d+\w*)\[([\d,]*)\]", shape)
    return [(dtype, [int(length) for length in re.findall(r"\d+", lengths)]) for dtype, lengths in found]


def _bytes(shape: str) -> int:
    bits = {dtype: 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0]) for dtype, _ in _arrays(shape)}
    return sum(math.ceil(bits[dtype] * math.prod(lengths) / 8) for dtype, lengths in _arrays(shape))


def _group(rest: str, devices: int) -> int:
    """Devices that take part in a collective."""
    if found := re.search(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})", rest):
        return int(found[1]) if found[1] else found[2].count(",") + 1
    found = re.search(r"replica_groups=mesh\[(.*?)\][^{]* \{(.*?)\}", rest)
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1])) if found else {}
    return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2])) if found else devices
