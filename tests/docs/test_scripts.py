"""The scripts of perf/ and experiments/ run: all of them print their options, and measure something tiny.

Those that build a tower of a published size or train one are thorough.
"""

import json
import runpy
import sys
from pathlib import Path

import jax
import pytest

from tests.support.paths import CHECKOUT
from tests.support.tiny import random_captions

SCRIPTS = [*sorted((CHECKOUT / "perf").glob("*.py")), *sorted((CHECKOUT / "experiments").glob("*.py"))]
WITH_OPTIONS = [path for path in SCRIPTS if "parse_args()" in path.read_text()]


@pytest.fixture(autouse=True)
def compilation_cache_as_before():
    """Scripts turn JAX's cache of programs on."""
    before = jax.config.jax_compilation_cache_dir
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def run(monkeypatch, path: Path, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", WITH_OPTIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_prints_its_options(path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, path, "--help")
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out


def test_the_page_of_performance_has_the_tables_of_its_figures(monkeypatch):
    run(monkeypatch, CHECKOUT / "perf" / "tables.py", "--check")


_PROGRAM = """
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = (f32[8]{0}, f32[2,4]{1,0}) all-reduce(%a, %b), replica_groups={{0,1},{2,3}}, to_apply=%add
  %by = s32[]{:T(128)} constant(2), metadata={}
  %i = s32[] get-tuple-element(%p), index=0
  %i.1 = s32[]{:T(128)S(6)} copy(%i), metadata={}
  %next = s32[] add(%i.1, %by)
  %x = f32[8] get-tuple-element(%p), index=1
  ROOT %both = (s32[], /*index=1*/f32[8]) tuple(%next, /*index=1*/%x)
}
%condition (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(14)
  %at = s32[] get-tuple-element(%p), index=0
  ROOT %goes_on = pred[] compare(%at, %limit), direction=LT, metadata={}
}
%async_collective_fusion.1 (p: f32[4]) -> f32[8] {
  %i = f32[8]{0:T(128)} all-gather(%p), channel_id=4, replica_groups=mesh['x'=2,'y'=2] {'y'}, attributes={chain_id="2"}
}
%async_collective_fusion.2 (p: f32[4]) -> f32[8] {
  %j = f32[8]{0:T(128)} all-gather(%p), channel_id=4, replica_groups=mesh['x'=2,'y'=2] {'y'}, attributes={chain_id="2"}
  %k = f32[8]{0:T(128)} all-gather(%p), channel_id=4, replica_groups=mesh['x'=2,'y'=2] {'y'}, attributes={chain_id="3"}
}
%all-reduce-scatter.5.clone (p: f32[16], q: f32[4,8]) -> (f32[4], f32[4,2]) {
  %r.2 = (f32[16]{0:T(128)}, f32[4,8]{1,0:T(4,128)}) all-reduce(%p, %q), replica_groups={{0,1,2,3}}, to_apply=%add
  %p.1 = f32[16]{0:T(128)} get-tuple-element(%r.2), index=0
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %first = s32[] constant(3)
  %t = (s32[], f32[8]) tuple(%first, %x)
  %w = (s32[], f32[8]) while(%t), condition=%condition, body=%body
  %g = (bf16[4]{0}, bf16[16]{0}) all-gather-start(%y), replica_groups=[1,4]<=[4], dimensions={0}
  %s = ((f32[8]{0}, bf16[16]{0}), (f32[2]{0}, bf16[4]{0})) reduce-scatter-start(%y, %z), replica_groups=[1,4]<=[4]
  %e = ((f32[2,4]{1,0:T(4,128)}), f32[2,4]{1,0:T(4,128)}) all-to-all-start(%y), replica_groups=[1,4]<=[4]
  %f = (f32[8]{0}, u32[]) fusion(%y), kind=kCustom, calls=%async_collective_fusion.1
  %h = (f32[8]{0}, u32[]) fusion(%f), kind=kCustom, calls=%async_collective_fusion.2
  %u = (f32[8]{0}, f32[2]{0}) all-reduce-start(%y, %z), replica_groups=[1,4]<=[4], to_apply=%add
  %v = (f32[4]{0}, f32[4,2]{1,0}) fusion(%y, %z), kind=kCustom, calls=%all-reduce-scatter.5.clone
}
"""


def test_collectives_in_loops_count_as_often_as_they_run(monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))
    from hlo_cost import Collective, bytes_sent, collectives

    found = collectives(_PROGRAM, 4)
    assert found == [
        Collective("all-reduce", 6, 64, 2, False),
        Collective("all-gather", 1, 32, 4, True),
        Collective("reduce-scatter", 1, 16, 4, True),
        Collective("all-to-all", 1, 32, 4, True),
        Collective("all-gather", 1, 32, 2, False),
        Collective("all-gather", 1, 32, 2, False),
        Collective("all-reduce", 1, 40, 4, True),
        Collective("reduce-scatter", 1, 48, 4, False),
    ]
    assert bytes_sent(_PROGRAM, 4) == {
        "all-gather": 24 + 2 * 16,
        "all-reduce": 6 * 64 + 2 * 3 / 4 * 40,
        "reduce-scatter": 3 * (16 + 48),
        "all-to-all": 3 / 4 * 32,
    }

    known = _PROGRAM.replace("body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"9"}}\n')
    assert collectives(known, 4)[0].runs == 9
    with pytest.raises(ValueError, match="found start 3, step None, limit 14; wanted constants"):
        collectives(_PROGRAM.replace("add(%i.1, %by)", "multiply(%i.1, %by)"), 4)
    with pytest.raises(ValueError, match="found start None, step 2, limit 14; wanted constants"):
        collectives(_PROGRAM.replace("%first = s32[] constant(3)", "%first = s32[] get-tuple-element(%x), index=0"), 4)


_KERNELS = """
%fused (p0: f32[6,4,4], p1: s32[], p2: f32[4,4]) -> f32[4,4] {
  %p0 = f32[6,4,4]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[4,4]{1,0} parameter(2)
  %layer = f32[1,4,4]{2,1,0} dynamic-slice(%p0, %p1), dynamic_slice_sizes={1,4,4}
  %flat = f32[4,4]{1,0} bitcast(%layer)
  ROOT %sum = f32[4,4]{1,0} add(%flat, %p2)
}
%stack (q0: f32[6,4,4], q1: f32[4,4], q2: s32[]) -> f32[6,4,4] {
  %q0 = f32[6,4,4]{2,1,0} parameter(0)
  %q1 = f32[4,4]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  %row = f32[1,4,4]{2,1,0} bitcast(%q1)
  ROOT %put = f32[6,4,4]{2,1,0} dynamic-update-slice(%q0, %row, %q2)
}
%body (p: (s32[], f32[6,4,4], f32[4,4])) -> (s32[], f32[6,4,4], f32[4,4]) {
  %p = (s32[], f32[6,4,4]{2,1,0}, f32[4,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %layers = f32[6,4,4]{2,1,0} get-tuple-element(%p), index=1
  %x = f32[4,4]{1,0} get-tuple-element(%p), index=2
  %y = f32[4,4]{1,0} fusion(%layers, %i, %x), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/add"}
  %z = f32[6,4,4]{2,1,0} fusion(%layers, %y, %i), kind=kLoop, calls=%stack
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,32]{1,0} parameter(1)
  %w = (s32[], f32[6,4,4]{2,1,0}, f32[4,4]{1,0}) while(%t), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  %g = (bf16[8,32]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %q = bf16[2,8,4,16]{3,2,1,0} parameter(2)
  %s = (bf16[2,4,8,16]{3,1,2,0}, f32[2,4,8]{2,1,0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"intermediate_tensor_shape": {"dimensions": ["2", "4", "8", "8"]}}
  %r = f32[16]{0} all-reduce(%v), replica_groups={{0,1,2,3}}, to_apply=%add
}
"""  # noqa: E501  an instruction is one line


def test_kernels_of_a_program_for_gpus(monkeypatch):
    """By hand: layers are read and written one at a time, loops count six times."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))
    from gpu_kernels import Kernel, kernels

    add, put, product, attention, sums = kernels(_KERNELS, 4)
    assert add == Kernel("y", "jit(f)/add", "other", 6, 0.0, 64 + 4 + 64 + 64, "")
    assert put == Kernel("z", "", "other", 6, 0.0, 64 + 4 + 64, "")
    assert (product.kind, product.runs, product.dtype) == ("product", 1, "bf16")
    assert (product.flops, product.bytes) == (2 * 8 * 16 * 32, 2 * (8 * 16 + 16 * 32 + 8 * 32) + 64)
    assert (attention.kind, attention.flops) == ("attention", 2 * 2 * (2 * 4 * 8 * 8) * 16)
    assert attention.bytes == 2 * 4 * 2 * 8 * 4 * 16 + 4 * 2 * 4 * 8
    assert (sums.kind, sums.bytes) == ("collective", 2 * 3 / 4 * 64)


@pytest.mark.thorough
def test_gradients_leave_a_device_once_a_step(monkeypatch, capsys):
    run(monkeypatch, CHECKOUT / "experiments" / "collectives.py", "--layers", 2, "--pairs", 16, "--parts", "1")
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    reduced = step["collectives"]["all-reduce"]
    assert step["devices"] == 8 and reduced["mb"] == pytest.approx(step["parameters_mb"], rel=0.01)


@pytest.mark.parametrize("arguments", [
    pytest.param("perf/mixing.py --images 64 --repeats 1", marks=pytest.mark.thorough),
    "perf/loss.py --pairs 16 --width 8 --repeats 1 --strategies ring,dense",
    "perf/corruptions.py --side 32 --batch 2 --severities 1 --repeats 1 --kinds contrast",
    pytest.param("perf/influence.py --captions CAPTIONS --count 8 --reference-count 2 --parts 1",
                 marks=pytest.mark.thorough),
    pytest.param("perf/towers.py captions --captions CAPTIONS --count 8 --reference-count 2 --rounds 1",
                 marks=pytest.mark.thorough),
    pytest.param("perf/towers.py images --count 8 --batch 4 --rounds 1", marks=pytest.mark.thorough),
    pytest.param("perf/ranking.py --images 8 --captions 50 --width 8 --repeats 1", marks=pytest.mark.thorough),
    pytest.param("perf/train.py --batch 8 --rounds 1 --steps 1", marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_measurement_runs_on_eight_captions(arguments, tmp_path, monkeypatch, capsys):
    items = [{"image": f"{number}.png", "caption": random_captions(2, seed=number)} for number in range(4)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    name, *options = arguments.replace("CAPTIONS", str(tmp_path / "captions.json")).split()
    run(monkeypatch, CHECKOUT / name, *options)
    assert any(character.isdecimal() for character in capsys.readouterr().out)
