"""Compile programs for chips that need not be here, and print what each computes, moves and sends, one line a program.

    python perf/compiled.py --topology v5e:2x2 --pairs 128 --remat full                    the training step
    python perf/compiled.py --peer big_vision --source GIT_DIRECTORY --topology v5e:2x2    SigLIP's trainer

Needs libtpu beside jaxlib. The model is a SigLIP B/16 in bfloat16 (224 pixels, 64 tokens, sigmoid loss, AdamW).
All numbers are of one device and one run, read from the compiled program with each loop as often as it runs:

    TFLOP        of matrix products and convolutions
    GB           bytes that instructions read from the memory of the chip and write to it. An array in on-chip memory
                 (memory space S(1)) does not count, nor does what a slice leaves out of its operand; padding of tiles
                 is not included
    collectives  instructions and megabytes of operands, in loops and outside; asynchronous ones among all
    peak         arguments, temporaries and results

None of this is a time. `--peer` needs a git directory of the other project; PYTHONPATH=TREE compiles another version of
this one.
"""

import argparse
import dataclasses
import math
import os
import re
import subprocess
import sys
import tempfile
import types
from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rococo_jax.cli.train import _LIBTPU_WITHOUT_CHIPS
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.runtime import AXES, device_array
from rococo_jax.training.plan import asynchronous_collectives, collectives_of

# libtpu reads them when it is loaded.
for variable, value in _LIBTPU_WITHOUT_CHIPS.items():
    os.environ.setdefault(variable, value)
TOKENS, VOCABULARY, SIDE = 64, 32_000, 224
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+\w*)\[([\d,]*)\](\{[^}]*\})?")
# Instructions that only name arrays, and the ends of those that their starts count.
_FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "call", "conditional", "after-all",
         "optimization-barrier", "partition-id", "iota"}  # fmt: skip
_SLICES = {"dynamic-slice", "slice", "gather"}


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


class Costs:
    """FLOPs and bytes of one run of a program, from its text."""

    def __init__(self, program: str):
        self.computations: dict[str, list[Instruction]] = defaultdict(list)
        self.flops = self.bytes = 0.0
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
        self.bytes_by_opcode: dict[str, float] = defaultdict(float)
        self._count(entry, 1, True)

    def _count(self, computation: str, times: float, reads_memory: bool) -> None:
        for each in self.computations[computation]:
            self.flops += times * self._flops(each)
            if each.opcode == "while":
                self._count(each.called("body"), times * self._turns(each), reads_memory)
                continue
            if reads_memory and each.opcode not in _FREE and not each.opcode.endswith("-done"):
                size = times * self._bytes(each)
                self.bytes += size
                self.bytes_by_opcode[each.name.rstrip("0123456789.") + " " + each.shape.split("{")[0][:40]] += size
            inner = each.called("calls") or (each.opcode == "call" and each.called("to_apply"))
            if inner:
                self._count(inner, times, reads_memory and each.opcode == "call")

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
            return math.ceil((self._constant(limit.name) - start) / step)
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

    def _bytes(self, each: Instruction) -> float:
        if each.opcode in ("copy-start", "slice-start"):
            # Results are the destination and the source, of slices in the other order.
            place = 0 if each.opcode == "copy-start" else 1
            size = _array_bytes(*_ARRAY.findall(each.shape)[place][:2])
            in_memory = [_sizes(self.by_name[each.operands[0]].shape)[0], _sizes(each.shape)[place]]
            return size * sum(map(bool, in_memory))
        inner = self.computations.get(each.called("calls"), [])
        parameters = [i for i in inner if i.opcode == "parameter"]
        read = sum(
            self._read(operand, inner, next((p for p in parameters if int(p.literal) == number), None))
            for number, operand in enumerate(each.operands)
        )
        if each.opcode in _SLICES:
            read = min(read, sum(_sizes(each.shape)))
        if each.opcode == "dynamic-update-slice":
            return 2 * sum(_sizes(self.by_name[each.operands[1]].shape))
        return read + (self._written(each, inner) if inner else sum(_sizes(each.shape)))

    def _read(self, operand: str, inner: list[Instruction], parameter: Instruction | None) -> float:
        """Return what an instruction reads of an operand: of a fusion that only slices it, the slices."""
        size = sum(_sizes(self.by_name[operand].shape))
        if parameter is None or not size:
            return size
        users = [each for each in inner if parameter.name in each.operands]
        while users and all(each.opcode in ("bitcast", "reshape") for each in users):
            names = {each.name for each in users}
            users = [each for each in inner if names & set(each.operands)]
        if users and all(each.opcode in _SLICES for each in users):
            return min(size, sum(_all_bytes(each.shape) for each in users))
        if users and all(each.opcode == "dynamic-update-slice" for each in users):
            return 0  # updated in place
        return size

    def _written(self, each: Instruction, inner: list[Instruction]) -> float:
        """Return what a fusion writes: of an array that it updates in place, the update."""
        root = next(i for i in inner if i.is_root)
        by_name = {i.name: i for i in inner}
        results = [by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
        sizes = _sizes(each.shape)
        total = 0.0
        for size, result in zip(sizes, results, strict=False):
            while result.opcode in ("bitcast", "reshape") and result.operands[0] in by_name:
                result = by_name[result.operands[0]]
            is_update = size and result.opcode == "dynamic-update-slice"
            total += _all_bytes(by_name[result.operands[1]].shape) if is_update else size
        return total

    def _flops(self, each: Instruction) -> float:
        if each.opcode == "dot":
            axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.attributes)[1]
            left = _lengths(self.by_name[each.operands[0]].shape)
            return 2 * math.prod(_lengths(each.shape)) * math.prod(left[int(axis)] for axis in axes.split(",") if axis)
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
        return 2 * products / (int(groups[1]) if groups else 1)


def _valid_positions(inputs: int, kernel: int, outputs: int, options: dict[str, str]) -> int:
    """Count the pairs of output and kernel position on an axis whose input exists: not padding, not a hole."""
    stride, dilation, holes = (int(options.get(key, 1)) for key in ("stride", "rhs_dilate", "lhs_dilate"))
    before = int(options.get("pad", "0_0").split("_")[0])
    position = np.arange(outputs)[:, None] * stride - before + np.arange(kernel) * dilation
    return int(((position >= 0) & (position % holes == 0) & (position // holes < inputs)).sum())


def _lengths(shape: str) -> list[int]:
    return [int(length) for length in _ARRAY.search(shape)[2].split(",") if length]


def _sizes(shape: str) -> list[float]:
    """Return the bytes in the memory of the chip of each array of a shape."""
    arrays = _ARRAY.findall(shape)
    return [0 if "S(" in layout else _array_bytes(dtype, lengths) for dtype, lengths, layout in arrays]


def _all_bytes(shape: str) -> float:
    return sum(_array_bytes(dtype, lengths) for dtype, lengths, _ in _ARRAY.findall(shape))


def _array_bytes(dtype: str, lengths: str) -> float:
    bits = 8 if dtype == "pred" else int(re.search(r"\d+", dtype)[0])
    return bits / 8 * math.prod(int(length) for length in lengths.split(",") if length)


def siglip(layers: int) -> ModelSpec:
    """Return the spec of a SigLIP B/16 with this number of layers."""
    shape = {"width": 768, "layers": layers, "heads": 12, "mlp_width": 3072}
    shape |= {"activation": "gelu_tanh", "norm_eps": 1e-6}
    vision = VisionSpec(
        image_size=SIDE, patch_size=16, class_token=False, patch_bias=True, norm_before_blocks=False,
        layer_scale=False, pooling="attention", **shape,
    )  # fmt: skip
    text = TextSpec(VOCABULARY, TOKENS, **shape, attention="full", norm_after_blocks=False, pooling="last")
    return ModelSpec(vision, text, HeadSpec(), HeadSpec("linear", 768, bias=True), logit_bias=True)


def training_step(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the step of `rococo train`."""
    from rococo_jax.training.config import default_config
    from rococo_jax.training.step import lower_step

    config = default_config()
    config.batch_size, config.fsdp = arguments.pairs * mesh.size, arguments.fsdp
    config.micro_batches, config.remat, config.dtype = arguments.micro_batches, arguments.remat, "bfloat16"
    config.losses.contrastive.kind = "sigmoid"
    for name in ("sc", "vc", "hard_positives"):
        config.losses[name].weight = float(name in arguments.losses.split(","))
    return lower_step(config, siglip(arguments.layers), None if arguments.bare else _preprocessing(), mesh, TOKENS)


def _preprocessing():
    from rococo_jax.data.preprocessing import Preprocessing

    return Preprocessing(shortest_edge=SIDE, crop_size=(SIDE, SIDE), mean=(0.5,) * 3, std=(0.5,) * 3)


def big_vision_step(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the update of big_vision's SigLIP trainer with its models.

    The update is nested in the trainer's `main`, so its loss is written out here; `optax.adamw` stands for its
    optimizer. Its text tower has no `dtype_mm` and computes in float32 arrays.
    """
    folder = tempfile.mkdtemp()
    archive = subprocess.run(
        ["git", "-C", arguments.source, "archive", "HEAD", "big_vision/models"], check=True, capture_output=True
    )
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    sys.path.insert(0, folder)
    for name in ("big_vision.utils", "big_vision.models.common"):  # readers of checkpoints, which need TensorFlow
        sys.modules[name] = types.ModuleType(name)
    from big_vision.models.proj.image_text import two_towers

    sys.modules["big_vision"].utils = sys.modules["big_vision.utils"]
    policies = {"full": "nothing_saveable", "dots": "dots_with_no_batch_dims_saveable"}
    settings = {"scan": arguments.remat != "none", "depth": arguments.layers}
    settings["remat_policy"] = policies.get(arguments.remat, "")
    model = two_towers.Model(
        image={"variant": "B/16", "pool_type": "map", "dtype_mm": "bfloat16", **settings},
        text={"variant": "B", "vocab_size": VOCABULARY, **settings},
        out_dim=(None, 768), temperature_init=10.0, bias_init=-10.0,
    )  # fmt: skip
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=1e-4))

    def update(state, images, labels):
        def loss(parameters):
            image, text, extras = model.apply({"params": parameters}, images, labels, train=True)
            logits = jnp.dot(image, text.T) * extras["t"] + extras["b"]
            signs = -jnp.ones_like(logits) + 2 * jnp.eye(len(image))
            return jnp.mean(-jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=-1))

        parameters, moments = state
        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    rows, full = NamedSharding(mesh, PartitionSpec(AXES)), NamedSharding(mesh, PartitionSpec())
    count = arguments.pairs * mesh.size
    images = jax.ShapeDtypeStruct((count, SIDE, SIDE, 3), jnp.float32, sharding=rows)
    labels = jax.ShapeDtypeStruct((count, TOKENS), jnp.int32, sharding=rows)
    shapes = jax.eval_shape(lambda *batch: model.init(jax.random.key(0), *batch)["params"], images, labels)
    state = (shapes, jax.eval_shape(optimizer.init, shapes))
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=full), state)
    return jax.jit(update, donate_argnums=0, out_shardings=(full, full)).lower(state, images, labels)


def row_of(compiled: jax.stages.Compiled, label: str, keep: Path | None) -> str:
    """Return a line of the table."""
    program = compiled.as_text()
    if keep:
        print(compiled.memory_analysis(), file=sys.stderr)
        (keep / f"{re.sub(r'[^a-z0-9]+', '_', label.lower())}.hlo").write_text(program)
    costs, sizes = Costs(program), compiled.memory_analysis()
    collectives = collectives_of(program)
    inside = [row for name, row in collectives.items() if "loop" in name]
    outside = [row for name, row in collectives.items() if "loop" not in name]
    total = [sum(row["instructions"] for row in rows) for rows in (inside, outside)]
    megabytes = [sum(row["bytes"] for row in rows) / 1e6 for rows in (inside, outside)]
    peak = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
    peak += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    cells = [
        label, f"{costs.flops / 1e12:.2f}", f"{costs.bytes / 1e9:.1f}", f"{sizes.temp_size_in_bytes / 1e9:.2f}",
        f"{total[0]}, {megabytes[0]:.1f}", f"{total[1]}, {megabytes[1]:.1f}",
        f"{asynchronous_collectives(program)} of {sum(total)}", f"{peak / 1e9:.2f}",
    ]  # fmt: skip
    if keep:
        for name, size in sorted(costs.bytes_by_opcode.items(), key=lambda item: -item[1])[:25]:
            print(f"    {size / 1e9:8.2f} GB  {name}", file=sys.stderr)
    return f"| {' | '.join(cells)} |"


COLUMNS = "| program | TFLOP | GB | temporaries, GB | in loops, MB a turn | outside, MB | asynchronous | peak, GB |"
PROGRAMS = {"rococo": training_step, "big_vision": big_vision_step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=PROGRAMS, default="rococo", help="whose training step (default: rococo)")
    parser.add_argument("--source", help="git directory of the peer")
    parser.add_argument("--topology", default="v5e:2x2", help="as v5e:4x4, v6e:2x2")
    parser.add_argument("--pairs", type=int, default=128, help="pairs a device (default: 128)")
    parser.add_argument("--layers", type=int, default=12, help="layers of both towers (default: 12)")
    parser.add_argument("--remat", default="full", help="none, dots or full (default: full)")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--fsdp", type=int, default=1)
    parser.add_argument("--losses", default="", help="further losses: sc,vc")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--options", default="", help="compiler options, NAME=VALUE,...")
    parser.add_argument("--label", help="first column of the line")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the program, print its largest instructions")
    arguments = parser.parse_args()
    devices = list(topologies.get_topology_desc(arguments.topology, "tpu").devices)
    mesh = Mesh(device_array(devices, arguments.fsdp), AXES)
    options = dict(option.split("=") for option in arguments.options.split(",") if option)
    lowered = PROGRAMS[arguments.peer](arguments, mesh)
    compiled = lowered.compile(compiler_options=options or None)
    label = arguments.label or f"{arguments.peer}, {arguments.topology}, {arguments.pairs} pairs, {arguments.remat}"
    print(COLUMNS, re.sub(r"[^|]+", " --- ", COLUMNS), row_of(compiled, label, arguments.keep), sep="\n", flush=True)


if __name__ == "__main__":
    main()
