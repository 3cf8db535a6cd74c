"""`rococo train --plan`: whether a step fits, what limits it, its FLOPs and collectives."""

import json
import math
import os

import pytest

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

# A program with a loop and with instructions outside of it; a TPU's all-gather in two fusions has one channel.
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
  %sum = f32[8,8]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(step)/while/body/sum"}
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


def test_collectives_are_counted_as_by_hand():
    """Bytes are those of operands; an instruction in a loop has a row of its own, and a channel in two fusions counts
    once."""
    assert plan.collectives_of(HLO) == {
        "all-gather bf16": {"instructions": 1, "bytes": 8},
        "all-reduce f32": {"instructions": 1, "bytes": 64},
        "all-reduce f32, each turn of a loop": {"instructions": 1, "bytes": 256},
        "all-to-all f32": {"instructions": 1, "bytes": 64},
        "collective-permute f32": {"instructions": 1, "bytes": 64},
    }


def test_collectives_that_share_a_channel_are_counted_separately():
    """All those of a `shard_map` have the first channel."""
    program = HLO.replace("channel_id=5", "channel_id=4")
    assert plan.collectives_of(program) == plan.collectives_of(HLO)


def test_an_asynchronous_collective_is_counted_once():
    started = HLO.replace(
        "%sent = f32[16]{0} collective-permute(", "%sent = (f32[16]{0}, f32[16]{0}) collective-permute-start("
    )
    assert plan.collectives_of(started)["collective-permute f32"] == {"instructions": 1, "bytes": 64}
    assert plan.asynchronous_collectives(HLO) == 0 and plan.asynchronous_collectives(started) == 1
    # XLA for GPUs found nothing to compute beside it.
    waiting = started.replace("channel_id=4, ", 'channel_id=4, backend_config={"is_sync":true}, ')
    assert plan.asynchronous_collectives(waiting) == 0
    # A computation that runs beside others, as XLA for GPUs writes a reduce-scatter.
    called = "%scattered = ((f32[16]{0}), f32[4]{0}) async-start(%second), calls=%all-reduce-scatter.1"
    wrapped = started.replace("%scattered = f32[4]{0} fusion(%second), kind=kLoop, calls=%all-reduce-scatter.1", called)
    assert plan.asynchronous_collectives(wrapped) == 2


@pytest.mark.slow
def test_gradients_are_summed_over_devices_once_per_step_and_outside_of_loops():
    """Neither in the loop over micro-batches nor in those over blocks."""
    config, spec = changed(default_config(), batch_size=PAIRS, micro_batches=2), tiny_spec(128)
    step = lower_step(config, spec, tiny_encoder().preprocessing, mesh_of(DEVICES), TOKENS)
    collectives = plan.collectives_of(step.compile().as_text())
    assert not [name for name in collectives if "loop" in name]
    parameters = sum(4 * math.prod(shape) for shape in parameter_shapes(spec).values())
    assert collectives["all-reduce f32"]["bytes"] == pytest.approx(parameters, rel=0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    captions = [["a red dog"], ["a blue cat"]]
    folder = write_world(tmp_path_factory.mktemp("data"), captions, start=tiny_encoder(name="start"))
    return write_config_file(folder, batch_size=16)


def words(data, *more):
    return ["train", "--config", str(data / "config.py"), "--workdir", str(data / "run"), "--plan", *more]


def test_a_plan_prints_memory_and_flops_and_does_not_train(data, capsys):
    assert main(words(data, "--json")) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["devices"], numbers["device"], numbers["pairs"]) == (8, "cpu", 16)
    memory = numbers["memory"]
    assert memory["total"] == sum(memory[name] for name in ("arguments", "temporaries", "results", "next_batch"))
    config, encoder = read_config(data / "config.py"), tiny_encoder()
    flops = step_flops(config, encoder.spec, numbers["text_length"], encoder.preprocessing)
    assert numbers["flops"]["model"] == flops / 8 and numbers["flops"]["xla"] > 0
    assert any(name.startswith("all-reduce f32") for name in numbers["collectives"])
    assert not (data / "run").exists()


@pytest.mark.slow
def test_the_first_line_of_a_plan_reports_whether_it_fits_and_what_limits_it(data, capsys):
    assert main(words(data)) == 0
    fits, limited_by, empty, *rest = capsys.readouterr().out.splitlines()
    assert fits.startswith("A step takes 0.00 GB of each device (cpu), which does not report how much memory it has.")
    assert limited_by.startswith("Most of it, 0.00 GB, is ") and not empty
    assert any(line.startswith("  all-reduce f32") and " MB in all" in line for line in rest)
    assert "second" not in " ".join(rest)


@pytest.mark.parametrize(
    ("temporaries", "advice"), [(5, "a larger micro_batches or remat='full'"), (1, "a larger fsdp divides")]
)
def test_the_largest_part_of_the_memory_decides_the_advice(temporaries, advice):
    memory = {"arguments": 2, "temporaries": temporaries, "results": 0, "next_batch": 0, "total": 9, "limit": 10**9}
    about = {"devices": 1, "device": "cpu", "pairs": 2, "text_length": 3, "collectives": {}}
    first, second, *_ = plan.describe({**about, "memory": memory, "flops": {"model": 1.0, "xla": None}})
    assert first.startswith("The step fits: it takes 0.00 GB of 1.00 GB of each device (cpu), 0%.")
    assert advice in second


def test_a_plan_that_does_not_fit_names_the_key_to_change(data, refusal, monkeypatch):
    assert "batch_size: found 12 on 8 devices" in refusal(*words(data, "--config.batch_size=12"))
    monkeypatch.setattr(plan, "memory_of", lambda device: 10_000)
    assert "config.micro_batches: found 1, with which a step of texts" in refusal(*words(data))


def test_a_plan_refuses_a_text_length_above_the_context_as_a_run_does(data, refusal):
    message = refusal(*words(data, "--config.data.text_length=1000"))
    assert "config.data.text_length: found 1000; wanted 0, or 2 to 24, the tower's context" in message


def test_two_plans_can_use_libtpu_at_the_same_time(data, refusal, monkeypatch):
    for name in ("ALLOW_MULTIPLE_LIBTPU_LOAD", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "removed at the end of the test")
        monkeypatch.delenv(name)
    refusal(*words(data, "--topology", "no:where"))
    assert os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] == os.environ["TPU_SKIP_MDS_QUERY"] == "1"


def test_a_missing_cudnn_is_reported_in_one_line(data, refusal, monkeypatch):
    def without_cudnn(*_):
        raise RuntimeError("cuDNN not found.")

    monkeypatch.setattr("rococo_jax.training.plan.lower_step", without_cudnn)
    (line,) = refusal(*words(data)).splitlines()
    assert "topology: cuDNN: found cuDNN not found.; wanted cuDNN beside JAX's plugin" in line


def test_the_topology_option_requires_a_compiler_and_the_plan_option(data, refusal):
    assert "topology: devices: found 'no:where'" in refusal(*words(data, "--topology", "no:where"))
    without = [word for word in words(data, "--topology", "v5e:2x2") if word != "--plan"]
    assert "--topology: found it alone; wanted it with --plan" in refusal(*without)
