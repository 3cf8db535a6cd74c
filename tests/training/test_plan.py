"""`rococo train --plan`: its counts agree with counts of other kinds, and what does not fit is refused."""

import functools
import json
import math
import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.cli.main import main
from rococo_jax.training import plan
from rococo_jax.training.config import default_config, read_config
from rococo_jax.training.program import step_flops
from rococo_jax.training.step import lower_step
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import changed, mesh_of, write_config_file
from tests.support.world import write_world

PAIRS, TOKENS, DEVICES = 64, 12, 8

# The counter of the loop goes 3, 5, ... below 14, so six times; as in programs for TPUs, XLA does not say how often.
HLO = """HloModule step, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %both = f32[] add(%a, %b)
}

%body (state: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %state = (s32[], f32[8,8]{1,0}) parameter(0)
  %at = s32[] get-tuple-element(%state), index=0
  %by = s32[] constant(2)
  %copied = s32[] copy(%at)
  %next = s32[] add(%copied, %by)
  %x = f32[8,8]{1,0} get-tuple-element(%state), index=1
  %sum = f32[8,8]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%add
  %square = f32[8,8]{1,0} dot(%sum, %sum), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %after = (s32[], f32[8,8]{1,0}) tuple(%next, %square)
}

%condition (before: (s32[], f32[8,8])) -> pred[] {
  %limit = s32[] constant(14)
  %before = (s32[], f32[8,8]{1,0}) parameter(0)
  %now = s32[] get-tuple-element(%before), index=0
  ROOT %less = pred[] compare(%now, %limit), direction=LT
}

%all-reduce-scatter.1 (whole: f32[16]) -> f32[4] {
  %whole = f32[16]{0} parameter(0)
  %total = f32[16]{0} all-reduce(%whole), channel_id=2, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=%add
  ROOT %own = f32[4]{0} slice(%total), slice={[0:4]}
}

%chained.1 (part: bf16[4]) -> bf16[16] {
  %part = bf16[4]{0} parameter(0)
  ROOT %gathered = bf16[16]{0} all-gather(%part), channel_id=3, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="7"}
}

%chained.2 (again: bf16[4]) -> bf16[16] {
  %again = bf16[4]{0} parameter(0)
  ROOT %gathered.2 = bf16[16]{0} all-gather(%again), channel_id=3, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="7"}
}

ENTRY %main (first: f32[8,8], second: f32[16], third: bf16[4], q: bf16[2,8,4,16], left: bf16[8,16], right: bf16[16,32]) -> f32[8,8] {
  %first = f32[8,8]{1,0} parameter(0)
  %second = f32[16]{0} parameter(1)
  %third = bf16[4]{0} parameter(2)
  %q = bf16[2,8,4,16]{3,2,1,0} parameter(3)
  %left = bf16[8,16]{1,0} parameter(4)
  %right = bf16[16,32]{1,0} parameter(5)
  %from = s32[] constant(3)
  %start = (s32[], f32[8,8]{1,0}) tuple(%from, %first)
  %loop = (s32[], f32[8,8]{1,0}) while(%start), condition=%condition, body=%body
  %scattered = f32[4]{0} fusion(%second), kind=kLoop, calls=%all-reduce-scatter.1
  %chain.1 = bf16[16]{0} fusion(%third), kind=kLoop, calls=%chained.1
  %chain.2 = bf16[16]{0} fusion(%third), kind=kLoop, calls=%chained.2
  %sent = f32[16]{0} collective-permute(%second), channel_id=4, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %swapped = f32[16]{0} all-to-all(%second), channel_id=5, replica_groups=mesh['x'=1,'y'=2,'z'=2], device_ids=([2,2]T(1,0)) {'y'}, dimensions={0}
  %gemm = (bf16[8,32]{1,0}, s8[64]{0}) custom-call(%left, %right), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %fmha = (bf16[2,4,8,16]{3,2,1,0}, f32[2,4,8]{2,1,0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"intermediate_tensor_shape": {"dimensions": ["2", "4", "8", "8"]}}
  %kernel = f32[16]{0} custom-call(%second), custom_call_target="tpu_custom_call"
  ROOT %result = f32[8,8]{1,0} get-tuple-element(%loop), index=1
}
"""  # noqa: E501  an instruction is one line


def test_loops_collectives_and_library_calls_of_a_program_by_hand():
    costs = plan.ProgramCosts(HLO, 4)
    assert costs.collectives == {
        "all-reduce f32": {"runs": 6, "bytes": 6 * 256, "sent": 6 * 256},
        "reduce-scatter f32": {"runs": 1, "bytes": 64, "sent": 48},
        "all-gather bf16": {"runs": 1, "bytes": 8, "sent": 24},
        "all-to-all f32": {"runs": 1, "bytes": 64, "sent": 32},
        "collective-permute f32": {"runs": 1, "bytes": 64, "sent": 64},
    }
    # What stands beside the products are six counters and the sums of collectives.
    products = 6 * 2 * 8**3 + 2 * 8 * 16 * 32 + 2 * 2 * (2 * 4 * 8 * 8) * 16
    assert products <= costs.flops <= products + 6 * (1 + 64) + 16
    assert costs.unknown == {"tpu_custom_call": 1}
    gemm, fmha = 2 * (8 * 16 + 16 * 32 + 8 * 32) + 64, 4 * 2 * 8 * 4 * 16 * 2 + 4 * 2 * 4 * 8
    without = plan.ProgramCosts(HLO.replace("__cublas", "other").replace("__cudnn", "other"), 4)
    assert costs.bytes - without.bytes == gemm + fmha
    known = HLO.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"9"}}')
    assert plan.ProgramCosts(known, 4).collectives["all-reduce f32"]["runs"] == 9
    unknown = plan.ProgramCosts(HLO.replace("add(%copied, %by)", "multiply(%copied, %by)"), 4)
    assert unknown.collectives["all-reduce f32"]["runs"] == 1 and unknown.unknown["loop"] == 1


def test_nested_loops_of_a_compiled_program():
    """Three times five products of 16 x 8 by 8 x 64 on a device, each summed over eight devices."""
    mesh = mesh_of(DEVICES)

    def product(x, layer):
        own = jax.lax.dynamic_slice_in_dim(x, 8 * jax.lax.axis_index("data"), 8, axis=1)
        return jax.lax.psum(own @ layer, "data"), None

    def pass_over_layers(x, _, layers):
        return jax.lax.scan(product, x, layers)[0], None

    def passes(x, layers):
        return jax.lax.scan(functools.partial(pass_over_layers, layers=layers), x, length=3)[0]

    specs = PartitionSpec(), PartitionSpec(None, "data")
    step = jax.jit(jax.shard_map(passes, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()))
    shapes = jax.ShapeDtypeStruct((16, 64), jnp.float32), jax.ShapeDtypeStruct((5, 64, 64), jnp.float32)
    compiled = step.lower(*shapes).compile()
    costs, summed = plan.ProgramCosts(compiled.as_text(), DEVICES), 4 * 16 * 64
    expected = {"runs": 15, "bytes": 15 * summed, "sent": 15 * 2 * 7 / 8 * summed}
    assert costs.collectives == {"all-reduce f32": expected}
    products = 15 * 2 * 16 * 8 * 64
    assert products <= costs.flops <= 1.1 * products and compiled.cost_analysis()["flops"] < products / 10
    # A product reads its operands and writes sums, which the all-reduce reads and writes; slices of both operands are
    # copied before, and whatever the compiler copies besides is not more than that again.
    moved = 15 * (4 * 16 * 8 + 4 * 8 * 64 + 3 * summed)
    assert moved <= costs.bytes <= 2 * moved


@pytest.mark.parametrize(("parts", "passes"), [(1, 3), (2, 3.5)])
def test_operations_and_gradients_of_a_step(parts, passes):
    """The operations are those of the spec, with the forward pass that one of two parts repeats; beside them stand
    norms, activations and the optimizer. A gradient leaves a device once a micro-batch."""
    config, spec = changed(default_config(), batch_size=PAIRS, micro_batches=parts), tiny_spec(128)
    step = lower_step(config, spec, tiny_encoder().preprocessing, mesh_of(DEVICES), TOKENS)
    costs = plan.ProgramCosts(step.compile().as_text(), DEVICES)
    products = step_flops(config, spec, TOKENS) / DEVICES * passes / 3
    assert products <= costs.flops <= 1.1 * products
    parameters = parts * sum(4 * math.prod(shape) for shape in parameter_shapes(spec).values())
    assert costs.collectives["all-reduce f32"]["bytes"] == pytest.approx(parameters, rel=0.01)
    assert costs.collectives["all-reduce f32"]["sent"] == pytest.approx(2 * 7 / 8 * parameters, rel=0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    captions = [["a red dog"], ["a blue cat"]]
    folder = write_world(tmp_path_factory.mktemp("data"), captions, start=tiny_encoder(name="start"))
    return write_config_file(folder, batch_size=16)


def words(data, *more):
    return ["train", "--config", str(data / "config.py"), "--workdir", str(data / "run"), "--plan", *more]


def test_seconds_are_those_of_a_roofline(data, monkeypatch):
    monkeypatch.setattr(plan, "CHIPS", {"cpu": (1e12, 2e9, 4e6, 1e6)})
    monkeypatch.setattr(plan, "peak_flops", lambda device: 8e9)
    monkeypatch.setattr("rococo_jax.similarity.sharded_logits.GATHER_BYTES", 0)  # the ring of the losses
    figures = plan.plan(read_config(data / "config.py", ["config.steps=7200"]))
    seconds, rows = figures["roofline_seconds"], figures["collectives"]
    ring = sum(row["sent"] for name, row in rows.items() if name.startswith("collective-permute"))
    assert seconds["operations"] == figures["operations"] / 8e9 and seconds["bytes"] == figures["bytes"] / 2e9
    others = sum(row["sent"] for row in rows.values()) - ring
    assert ring > 0 and seconds["sent"] == pytest.approx(ring / 1e6 + others / 4e6)
    assert figures["run_hours"] == 2 * figures["step_seconds"] == 2 * max(seconds.values())


def test_a_plan_is_printed_and_nothing_is_trained(data, capsys):
    assert main(words(data, "--json", "--config.fsdp=2")) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["devices"], figures["device"], figures["pairs"], figures["programs"]) == (8, "cpu", 16, 1)
    assert figures["memory"]["arguments"] < figures["memory"]["with_next_batch"] and figures["operations"] > 0
    assert main(words(data)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("collectives all-reduce f32 ") and "runs " in line for line in lines)
    assert not (data / "run").exists()


def test_what_does_not_fit_names_the_key_to_change(data, refusal, monkeypatch):
    assert "batch_size: found 12 on 8 devices" in refusal(*words(data, "--config.batch_size=12"))
    monkeypatch.setattr(plan, "memory_of", lambda device: 10_000)
    assert "config.micro_batches: found 1, with which a step of texts" in refusal(*words(data))


def test_a_text_length_above_the_context_is_refused_as_by_a_run(data, refusal):
    told = refusal(*words(data, "--config.data.text_length=1000"))
    assert "config.data.text_length: found 1000; wanted 0, or 2 to 24, the tower's context" in told


def test_two_plans_may_use_libtpu_at_once(data, refusal, monkeypatch):
    for name in ("ALLOW_MULTIPLE_LIBTPU_LOAD", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "removed at the end of the test")
        monkeypatch.delenv(name)
    refusal(*words(data, "--topology", "no:where"))
    assert os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] == os.environ["TPU_SKIP_MDS_QUERY"] == "1"


def test_a_missing_cudnn_is_one_line(data, refusal, monkeypatch):
    def without_cudnn(*_):
        raise RuntimeError("cuDNN not found.")

    monkeypatch.setattr("rococo_jax.training.plan.lower_step", without_cudnn)
    (line,) = refusal(*words(data)).splitlines()
    assert "topology: cuDNN: found cuDNN not found.; wanted cuDNN beside JAX's plugin" in line


def test_a_topology_needs_its_compiler_and_a_plan(data, refusal):
    assert "topology: devices: found 'no:where'" in refusal(*words(data, "--topology", "no:where"))
    without = [word for word in words(data, "--topology", "v5e:2x2") if word != "--plan"]
    assert "--topology: option: found no --plan" in refusal(*without)
