"""Plan a run: compile its step, without running it, and report memory, FLOPs and collectives of one device.

The step is compiled for the devices of this machine, or for a topology whose chips need not be here. All numbers are
read from the compiled program or counted from the model; no time is predicted.

XLA's cost analysis counts the body of a loop once, although it runs several times (once a block of a tower, once a
micro-batch). The FLOPs of the model are complete: they are counted from its spec (`program.step_flops`). Collectives in
loops have rows of their own.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from ml_collections import ConfigDict

from rococo_jax.errors import InputError, first_line
from rococo_jax.runtime import AXES, GPU_MEMORY_FRACTION, device_array, make_mesh
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs.batches import text_length
from rococo_jax.training.program import bytes_of_device, compile_step, memory_of, step_flops
from rococo_jax.training.step import check_batch, host_batch_shapes, lower_step

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
_GPUS_PER_NODE = 8
_H100 = Path(__file__).parent / "assets" / "h100.txtpb"
# Name, shape, opcode, operands and attributes of an instruction of a compiled program.
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$", re.MULTILINE)
# Header of a computation, and the computations that an instruction calls.
_HEADER = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"calls=%([\w.\-]+)")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
# Larger than the memory of any chip: 4 TB in float32.
_TOO_LARGE = 1_000_000


def plan(config: ConfigDict, topology: str | None = None) -> dict[str, Any]:
    """Compile a step and return its numbers, which are those of one device and one step.

    Args:
        topology: devices that need not be here, such as `v5e:4x4` or `h100:8`; the devices of this machine by default.

    Raises:
        InputError: there is no such topology or no compiler for it, or the step does not fit.
    """
    devices = topology_devices(topology) if topology else jax.devices()
    check_batch(config, len(devices))
    mesh = Mesh(device_array(devices, config.fsdp), AXES)
    encoder = starting_encoder(config, make_mesh(jax.local_devices()[:1]))
    tokens = text_length(config.data.text_length, encoder)
    shapes = host_batch_shapes(config, encoder.spec, tokens, encoder.preprocessing)
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows), shapes)
    limit = _topology_memory(topology, devices[0]) if topology else memory_of(jax.local_devices()[0])
    with _missing_cudnn_as_input_error():
        lowered = lower_step(config, encoder.spec, encoder.preprocessing, mesh, tokens)
        compiled = compile_step(lowered, batch, config, limit)
    sizes = compiled.memory_analysis()
    memory = {
        "arguments": sizes.argument_size_in_bytes,
        "temporaries": sizes.temp_size_in_bytes,
        "results": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        "next_batch": bytes_of_device(batch),
    }
    return {
        "devices": len(devices),
        "device": devices[0].device_kind,
        "pairs": config.batch_size,
        "text_length": tokens,
        "memory": {**memory, "total": sum(memory.values()), "limit": limit},
        "flops": {
            "model": step_flops(config, encoder.spec, tokens, encoder.preprocessing) / len(devices),
            "xla": (compiled.cost_analysis() or {}).get("flops"),
        },
        "collectives": collectives_of(compiled.as_text()),
        "asynchronous_collectives": asynchronous_collectives(compiled.as_text()),
    }


def describe(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that say whether the step fits and what limits it, and then the numbers of `plan`."""
    memory, flops = numbers["memory"], numbers["flops"]
    yield _fits(memory, numbers["device"])
    yield _limited_by(memory)
    yield ""
    pairs, devices = numbers["pairs"], numbers["devices"]
    yield _row("devices", f"{devices} x {numbers['device']}")
    yield _row("batch", f"{pairs:,} pairs, {pairs // devices:,} per device; texts of {numbers['text_length']} tokens")
    yield ""
    yield "memory per device"
    yield _row("  parameters, optimizer, batch", _gigabytes(memory["arguments"]))
    yield _row("  temporaries", _gigabytes(memory["temporaries"]))
    yield _row("  results", _gigabytes(memory["results"]))
    yield _row("  next batch", _gigabytes(memory["next_batch"]))
    yield _row("  total", _gigabytes(memory["total"]))
    yield ""
    yield "FLOPs per device and step"
    yield _row("  model, counted from its spec", f"{flops['model'] / 1e12:.3g} TFLOP")
    if flops["xla"]:
        yield _row("  by XLA's cost analysis", f"{flops['xla'] / 1e12:.3g} TFLOP, the body of a loop counted once")
    yield ""
    yield "collectives of a device"
    for name, row in numbers["collectives"].items():
        yield f"  {name:<44}{row['instructions']:>4} of {row['bytes'] / 1e6:,.3f} MB in all"
    count = sum(row["instructions"] for row in numbers["collectives"].values())
    yield f"  asynchronous: {numbers['asynchronous_collectives']} of {count} collectives" if count else "  none"


def _fits(memory: Mapping[str, Any], device: str) -> str:
    total, limit = _gigabytes(memory["total"]), memory["limit"]
    if limit is None:
        return f"A step takes {total} of each device ({device}), which does not report how much memory it has."
    share = memory["total"] / limit
    return f"The step fits: it takes {total} of {_gigabytes(limit)} of each device ({device}), {share:.0%}."


def _limited_by(memory: Mapping[str, Any]) -> str:
    if memory["temporaries"] >= memory["arguments"]:
        size = _gigabytes(memory["temporaries"])
        return (
            f"Most of it, {size}, is temporaries such as activations kept for the backward pass: a larger micro_batches"
            " or remat='full' makes them smaller."
        )
    size = _gigabytes(memory["arguments"])
    return (
        f"Most of it, {size}, is parameters, optimizer state and the batch: a larger fsdp divides parameters and"
        " optimizer state among devices."
    )


def _row(name: str, value: str) -> str:
    return f"{name:<34}{value}"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"


class _Collective(NamedTuple):
    kind: str
    operands: list[tuple[str, int]]  # dtype and bytes
    in_loop: bool
    is_asynchronous: bool


def collectives_of(program: str) -> dict[str, dict[str, int]]:
    """Count the collectives in the text of a compiled program (`compiled.as_text()`), by kind and dtype.

    `bytes` are those of the operands on one device. Instructions in the body of a loop have rows of their own, for one
    turn of the loop.
    """
    counts: dict[str, Counter] = {}
    for collective in _collectives(program):
        dtypes = "+".join(sorted({dtype for dtype, _ in collective.operands}))
        place = ", each turn of a loop" if collective.in_loop else ""
        row = counts.setdefault(f"{collective.kind} {dtypes}{place}", Counter())
        row.update(instructions=1, bytes=sum(size for _, size in collective.operands))
    return {name: dict(counts[name]) for name in sorted(counts)}


def asynchronous_collectives(program: str) -> int:
    """Count the collectives that may run beside computation, in the text of a compiled program.

    Such a collective is a pair of `-start` and `-done`, or a computation that `async-start` calls. XLA for GPUs marks
    those between which it found nothing to compute.
    """
    return sum(collective.is_asynchronous for collective in _collectives(program))


def _collectives(program: str) -> list[_Collective]:
    """Return the collectives of a program, each once.

    Programs for TPUs show a collective several times, in each fusion that computes a part of it; its channel and its
    origin tell that it is the same. Elsewhere a channel tells nothing: all collectives of a `shard_map` may share one.
    """
    loops = _computations_of_loops(program)
    started = {name for line in re.findall(r" async-start\(.*", program) for name in _CALLED.findall(line)}
    called = set(_CALLED.findall(program))
    lines = [(computation, line, _INSTRUCTION.match(line)) for computation, line in _lines_by_computation(program)]
    shapes = {match[1]: match[2] for _, _, match in lines if match}
    collectives: dict[Any, _Collective] = {}
    for computation, line, match in lines:
        if match is None or (kind := match[3].removesuffix("-start")) not in COLLECTIVES:
            continue
        name, _, opcode, operands, attributes = match.groups()
        channel, origin = (re.search(each, attributes) for each in (r"channel_id=\d+", r"metadata={.*?}"))
        identity = (channel[0], origin and origin[0]) if channel and computation in called else name
        arrays = [array for each in re.findall(r"%([\w.\-]+)", operands) for array in _arrays(shapes[each])]
        may_overlap = (opcode.endswith("-start") or computation in started) and '"is_sync":true' not in line
        collectives.setdefault(identity, _Collective(kind, arrays, computation in loops, may_overlap))
    return list(collectives.values())


def _computations_of_loops(program: str) -> set[str]:
    """Return the names of the computations that run in each turn of a loop: bodies, and what these call.

    The names that JAX writes into instructions do not tell: one that XLA combined from several has all their names.
    """
    called: dict[str, set[str]] = {}
    for computation, line in _lines_by_computation(program):
        called.setdefault(computation, set()).update(_CALLED.findall(line))
    loops: set[str] = set()
    to_visit = _BODY.findall(program)
    while to_visit:
        if (name := to_visit.pop()) not in loops:
            loops.add(name)
            to_visit += called.get(name, ())
    return loops


def _lines_by_computation(program: str) -> Iterator[tuple[str, str]]:
    """Yield each line of a compiled program with the name of the computation that it belongs to."""
    computation = ""
    for line in program.splitlines():
        if header := _HEADER.match(line):
            computation = header[1]
        yield computation, line


def _arrays(shape: str) -> list[tuple[str, int]]:
    """Return dtype and bytes of each array of a shape such as `(f32[8,128]{1,0}, bf16[4])`."""
    arrays = []
    for dtype, lengths in re.findall(r"\b(pred|bf16|[suf]\d+\w*)\[([\d,]*)\]", shape):
        bits = 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])
        elements = math.prod(int(length) for length in re.findall(r"\d+", lengths))
        arrays.append((dtype, math.ceil(bits * elements / 8)))
    return arrays


def _gpus_in(topology: str) -> int:
    """Return the number of GPUs of a topology such as `h100:8`, 0 for other topologies."""
    match = re.fullmatch(r"h100:(\d+)", topology)
    return int(match[1]) if match else 0


def topology_devices(topology: str) -> list[Any]:
    """Return the devices of a topology that need not be here, such as `v5e:4x4` or `h100:8`.

    Raises InputError: the compiler for them is not installed, or does not know the topology.
    """
    gpus = _gpus_in(topology)
    options = {}
    if gpus:
        nodes = max(1, gpus // _GPUS_PER_NODE)
        options = {"target_config": _H100.read_text(), "topology": f"1x{nodes}x{gpus // nodes}"}
    try:
        return list(topologies.get_topology_desc(topology, "cuda" if gpus else "tpu", **options).devices)
    except (RuntimeError, NotImplementedError) as error:
        expected = "v5e:4x4 and the like (pip install 'jax[tpu]'), or h100:8 (pip install 'jax[cuda12]')"
        raise InputError("topology", "devices", f"{topology!r} ({first_line(error)})", expected) from None


def _topology_memory(topology: str, device: Any) -> int | None:
    """Return the bytes that programs may use of a device that is not here; None where the compiler does not say.

    libtpu names the memory of a chip only when it refuses a program, so it is given one that fits no chip.
    """
    if _gpus_in(topology):
        memory = re.search(r"device_memory_size: (\d+)", _H100.read_text())
        return int(float(GPU_MEMORY_FRACTION) * int(memory[1]))
    matrix = jax.ShapeDtypeStruct((_TOO_LARGE, _TOO_LARGE), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(jnp.cos).lower(matrix).compile()
    except jax.errors.JaxRuntimeError as error:
        available = re.search(r"(?:available HBM \(|of )([\d.]+)G\b", str(error))
        return int(float(available[1]) * 2**30) if available else None
    return None


@contextlib.contextmanager
def _missing_cudnn_as_input_error() -> Iterator[None]:
    """Raise InputError where JAX's plugin for CUDA is installed without cuDNN, which lowering and compiling need."""
    try:
        yield
    except RuntimeError as error:
        if "cudnn" not in str(error).lower():
            raise
        expected = "cuDNN beside JAX's plugin for CUDA: pip install 'jax[cuda12]'"
        raise InputError("topology", "cuDNN", first_line(error), expected) from None
