"""`perf/program_costs.py` counts a program by hand: loops, arrays on the chip, slices, and products of TPUs."""

import importlib

import pytest

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.quick
# A fusion that takes one layer of a stack.
SLICED = """HloModule step

%sliced (whole: f32[12,8,8], at: s32[]) -> f32[8,8] {
  %whole = f32[12,8,8]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,8,8]{2,1,0} dynamic-slice(%whole, %at, %zero, %zero), dynamic_slice_sizes={1,8,8}
  ROOT %layer = f32[8,8]{1,0} bitcast(%one)
}

"""
PROGRAM = (
    SLICED
    + """%body (state: (s32[], f32[8,8], f32[12,8,8])) -> (s32[], f32[8,8], f32[12,8,8]) {
  %state = (s32[], f32[8,8]{1,0}, f32[12,8,8]{2,1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %by = s32[] constant(2)
  %next = s32[] add(%turn, %by)
  %x = f32[8,8]{1,0} get-tuple-element(%state), index=1
  %layers = f32[12,8,8]{2,1,0} get-tuple-element(%state), index=2
  %kernel = f32[8,8]{1,0:T(8,128)S(1)} fusion(%layers, %turn), kind=kLoop, calls=%sliced
  %y = f32[8,8]{1,0} dot(%x, %kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %after = (s32[], f32[8,8]{1,0}, f32[12,8,8]{2,1,0}) tuple(%next, %y, %layers)
}

%condition (before: (s32[], f32[8,8], f32[12,8,8])) -> pred[] {
  %before = (s32[], f32[8,8]{1,0}, f32[12,8,8]{2,1,0}) parameter(0)
  %now = s32[] get-tuple-element(%before), index=0
  %limit = s32[] constant(12)
  ROOT %less = pred[] compare(%now, %limit), direction=LT
}

ENTRY %main (first: f32[8,8], stack: f32[12,8,8], q: bf16[4,16,32], k: bf16[4,24,32]) -> bf16[4,16,24] {
  %first = f32[8,8]{1,0} parameter(0)
  %stack = f32[12,8,8]{2,1,0} parameter(1)
  %q = bf16[4,16,32]{2,1,0} parameter(2)
  %k = bf16[4,24,32]{2,1,0} parameter(3)
  %from = s32[] constant(0)
  %start = (s32[], f32[8,8]{1,0}, f32[12,8,8]{2,1,0}) tuple(%from, %first, %stack)
  %loop = (s32[], f32[8,8]{1,0}, f32[12,8,8]{2,1,0}) while(%start), condition=%condition, body=%body
  %begin = ((f32[12,8,8]{2,1,0}), f32[4,8,8]{2,1,0:S(1)}, s32[]{:S(2)}) slice-start(%stack), slice={[0:4], [0:8], [0:8]}
  %end = f32[4,8,8]{2,1,0:S(1)} slice-done(%begin)
  ROOT %logits = bf16[4,16,24]{2,1,0} convolution(%q, %k), window={size=4 stride=3 pad=0_0 lhs_dilate=4}, dim_labels=0bf_0oi->0bf
}
"""  # noqa: E501  an instruction is one line
)


@pytest.fixture(scope="module")
def program_costs():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CHECKOUT / "perf")
        yield importlib.import_module("program_costs")


def test_costs_of_a_program_are_counted_as_by_hand(program_costs):
    costs, turns, array = program_costs.Costs(PROGRAM), 6, 4 * 8 * 8
    # The batch of attention is the window of a convolution, of which one position a row is no hole.
    assert costs.flops == turns * 2 * 8**3 + 2 * 4 * 16 * 24 * 32
    # A turn copies a slice into memory on the chip (array and counter), reads x and writes y, and adds to the counter.
    in_loop = turns * (array + 4 + 2 * array + 3 * 4)
    slice_on_chip = 4 * array
    assert costs.bytes == in_loop + slice_on_chip + 2 * 4 * (16 * 32 + 24 * 32 + 16 * 24)


NESTED = (
    SLICED
    + """%update (of: f32[12,8,8], by: f32[8,8], place: s32[]) -> f32[12,8,8] {
  %of = f32[12,8,8]{2,1,0} parameter(0)
  %by = f32[8,8]{1,0} parameter(1)
  %place = s32[] parameter(2)
  %start = s32[] constant(0)
  %new = f32[1,8,8]{2,1,0} bitcast(%by)
  ROOT %changed = f32[12,8,8]{2,1,0} dynamic-update-slice(%of, %new, %place, %start, %start)
}

%layer_product (stack: f32[12,8,8], turn: s32[], x: f32[8,8], out: f32[12,8,8]) -> f32[12,8,8] {
  %stack = f32[12,8,8]{2,1,0} parameter(0)
  %turn = s32[] parameter(1)
  %x = f32[8,8]{1,0} parameter(2)
  %out = f32[12,8,8]{2,1,0} parameter(3)
  %kernel = f32[8,8]{1,0} fusion(%stack, %turn), kind=kLoop, calls=%sliced
  %y = f32[8,8]{1,0} dot(%x, %kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %kept = f32[12,8,8]{2,1,0} fusion(%out, %y, %turn), kind=kLoop, calls=%update
}

ENTRY %main (layers: f32[12,8,8], number: s32[], input: f32[8,8], outputs: f32[12,8,8]) -> f32[12,8,8] {
  %layers = f32[12,8,8]{2,1,0} parameter(0)
  %number = s32[] parameter(1)
  %input = f32[8,8]{1,0} parameter(2)
  %outputs = f32[12,8,8]{2,1,0} parameter(3)
  ROOT %result = f32[12,8,8]{2,1,0} fusion(%layers, %number, %input, %outputs), kind=kOutput, calls=%layer_product
}
"""
)


def test_a_slice_in_nested_fusions_counts_only_the_bytes_of_the_slice(program_costs):
    """Of both stacks one layer: whole stacks, counted in each turn of a loop, made a step three times as large."""
    layer = 4 * 8 * 8
    assert program_costs.Costs(NESTED).bytes == layer + 4 + layer + layer


@pytest.mark.parametrize(
    ("call", "products"),
    [
        ('%q), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
         '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}', 1),
        ('%q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":'
         '{"intermediate_tensor_shape":{"dimensions":["1","1","16","24"]}}}', 2),
        ('%q), custom_call_target="__cudnn$fmhaSoftmaxBackward", backend_config={"cudnn_fmha_backend_config":'
         '{"intermediate_tensor_shape":{"dimensions":["1","1","16","24"]}}}', 5),
    ],
)  # fmt: skip
def test_products_by_gpu_libraries_are_counted(call, products, program_costs):
    """A product of 16 x 32 by 32 x 24: one, attention's two, and its five backward."""
    program = f"""HloModule step

ENTRY %main (q: bf16[16,32]) -> bf16[16,24] {{
  %q = bf16[16,32]{{1,0}} parameter(0)
  ROOT %out = bf16[16,24]{{1,0}} custom-call(%q, {call}
}}
"""
    assert program_costs.Costs(program).flops == products * 2 * 16 * 32 * 24
