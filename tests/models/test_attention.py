"""Every implementation of attention against JAX's own reference: values and gradients, on every mask of the towers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.models import attention as attentions
from rococo_jax.models.attention import SelfAttention, attend, mask_of, use_fused_attention
from rococo_jax.models.fused_attention import CudnnAttention, SplashAttention, fused_attention_on
from rococo_jax.runtime import AXES, make_mesh
from tests.models.test_towers import TEXT, VISION
from tests.support.tiny import drawn_parameters

pytestmark = pytest.mark.quick
BATCH, HEADS, SIZE = 2, 2, 24
BEFORE = np.arange(9) != 4  # CoCa's: a token in the middle that has the id of the padding
# `causal` and `lengths`
MASKS = {
    "none": lambda tokens: (False, None),
    "causal": lambda tokens: (True, None),
    "padding": lambda tokens: (False, jnp.array([tokens, tokens // 2])),
    "both": lambda tokens: (True, jnp.array([tokens, tokens // 2])),
    "causal and keys": lambda tokens: (True, jnp.broadcast_to(BEFORE[:tokens], (BATCH, tokens))),
}


def array_of(mask: str, tokens: int) -> np.ndarray | None:
    """Return the mask by its definition, True where a query may attend to a key, `(b, 1, q, k)`."""
    query, key = np.mgrid[:tokens, :tokens]
    lengths = np.array([tokens, tokens // 2])[:, None, None, None]
    return {
        "none": None, "causal": (key <= query)[None, None], "padding": (key < lengths) | (query < 0),
        "both": (key < lengths) & (key <= query), "causal and keys": ((key <= query) & BEFORE[:tokens])[None, None],
    }[mask]  # fmt: skip


def inputs(tokens: int, dtype: str, batch: int = BATCH, heads: int = HEADS) -> list:
    """Query, key, value, and the cotangent of the output."""
    random = np.random.default_rng(tokens)
    return [jnp.asarray(random.normal(size=(batch, tokens, heads, SIZE)), dtype) for _ in range(4)]


def value_and_gradients(function, query, key, value, cotangent):
    def both(query, key, value, cotangent):
        mixed, backward = jax.vjp(function, query, key, value)
        return mixed, *backward(cotangent)

    return [np.asarray(each, np.float64) for each in jax.jit(both)(query, key, value, cotangent)]


def reference(mask, query, key, value, cotangent):
    """`jax.nn.dot_product_attention` in float32."""
    operands = [operand.astype(jnp.float32) for operand in (query, key, value, cotangent)]
    with jax.default_matmul_precision("highest"):
        return value_and_gradients(
            lambda *qkv: jax.nn.dot_product_attention(*qkv, mask=mask, implementation="xla"), *operands
        )


@pytest.mark.parametrize(
    ("mask", "dtype", "tolerance"),
    [
        *((mask, "float32", 2e-6) for mask in MASKS), ("both", "bfloat16", 2e-2),
        *(pytest.param(mask, "bfloat16", 2e-2, marks=pytest.mark.slow) for mask in MASKS if mask != "both"),
    ],
)  # fmt: skip
def test_attention_by_einsum_matches_its_definition(mask, dtype, tolerance):
    """bfloat16 keeps 8 bits: operands, weights and cotangents are each off by up to 2^-9 of themselves."""
    by_definition, mask, operands = array_of(mask, 9), mask_of(9, *MASKS[mask](9)), inputs(9, dtype)
    ours = value_and_gradients(lambda *qkv: attend(*qkv, mask), *operands)
    for mine, theirs in zip(ours, reference(by_definition, *operands), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_query_without_a_visible_key_attends_to_all_keys_equally(dtype):
    query, key, value, cotangent = inputs(9, dtype)
    mixed, _, _, to_value = value_and_gradients(
        lambda *qkv: attend(*qkv, mask_of(9, False, jnp.array([9, 0]))), query, key, value, cotangent
    )
    mean = np.asarray(value[1], np.float64).mean(0)
    np.testing.assert_allclose(mixed[1], np.broadcast_to(mean, mixed[1].shape), rtol=0, atol=0.01)
    total = np.asarray(cotangent[1], np.float64).sum(0) / 9
    np.testing.assert_allclose(to_value[1], np.broadcast_to(total, to_value[1].shape), rtol=0, atol=0.01)


def test_products_of_attention_are_in_the_dtype_of_the_towers():
    """The results are, too: float32 logits would double the bytes that a TPU writes and reads most."""
    operands = inputs(9, "bfloat16")
    backward = jax.jit(lambda *operands: jax.vjp(lambda *qkv: attend(*qkv, None), *operands[:3])[1](operands[3]))
    products = [line for line in backward.lower(*operands).as_text().splitlines() if "dot_general" in line]
    assert len(products) == 6, "two forward, and two for the gradients of each"
    for line in products:
        assert "f32" not in line.split(" : (")[1], line


def sums_of_products_are_exact(query, key):
    """Whether XLA rounds a product in bfloat16 once; that of JAX 0.12 is off by 0.008 instead of 0.0017 on CPUs."""
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 50, 50)), jnp.bfloat16)
    _, backward = jax.vjp(lambda key: jnp.einsum("bqhd,bkhd->bhqk", query, key), key)
    exact = np.einsum("bhqk,bqhd->bkhd", *(np.asarray(each, np.float64) for each in (cotangent, query)))
    error = np.asarray(backward(cotangent)[0], np.float64) - exact
    return np.sqrt((error**2).mean() / (exact**2).mean()) < 0.003


@pytest.mark.parametrize(("deviation", "tolerance"), [(1.0, 0.005), (8.0, 0.025)])
def test_errors_of_rounded_logits_are_bounded_by_their_rounding(deviation, tolerance):
    """Against float64, each operation by itself, since a compiler for CPUs does not round between two of them.

    A logit of size z is rounded by up to 2^-9 z, and its weight by as much of itself. With float32 logits the errors
    are 0.0029 for both deviations; here they are 0.0038 and 0.021.
    """
    random = np.random.default_rng(0)
    factors = (deviation**0.5, deviation**0.5, 1, 1)
    operands = [jnp.asarray(factor * random.normal(size=(2, 50, 2, 64)), jnp.bfloat16) for factor in factors]
    with jax.disable_jit():
        mixed, backward = jax.vjp(lambda *qkv: attend(*qkv, None), *operands[:3])
        ours = [mixed, *backward(operands[3])]
    query, key, value, cotangent = (np.asarray(operand, np.float64) for operand in operands)
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) / 8
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    to_weights = np.einsum("bqhd,bkhd->bhqk", cotangent, value)
    to_logits = weights * (to_weights - (to_weights * weights).sum(-1, keepdims=True)) / 8
    exact = [np.einsum("bhqk,bkhd->bqhd", weights, value), np.einsum("bhqk,bkhd->bqhd", to_logits, key)]
    exact += [np.einsum("bhqk,bqhd->bkhd", to_logits, query), np.einsum("bhqk,bqhd->bkhd", weights, cotangent)]
    if not sums_of_products_are_exact(*operands[:2]):
        pytest.skip("this XLA rounds the sums of a bfloat16 product on CPUs")
    for mine, true in zip(ours, exact, strict=True):
        error = np.asarray(mine, np.float64) - true
        assert np.sqrt((error**2).mean() / (true**2).mean()) < tolerance


@pytest.fixture
def by_xla(monkeypatch):
    """Compute cuDNN's attention by XLA, and record the numbers of tokens of its calls."""
    attention, asked = jax.nn.dot_product_attention, []

    def compute(*operands, implementation, **options):
        assert implementation == "cudnn"
        asked.append(operands[0].shape[1])
        in_float32 = (operand.astype(jnp.float32) for operand in operands)
        return attention(*in_float32, implementation="xla", **options).astype(operands[0].dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", compute)
    return asked


@pytest.mark.parametrize(
    ("tokens", "mask"),
    [
        (9, "both"), pytest.param(8, "none", marks=pytest.mark.slow),
        pytest.param(9, "causal and keys", marks=pytest.mark.slow),
        *(pytest.param(9, mask, marks=pytest.mark.thorough) for mask in ("none", "causal", "padding")),
    ],
)  # fmt: skip
def test_blocks_give_the_same_results_with_cudnn_as_with_einsum(mask, tokens, by_xla):
    """Tokens, their gradient and those of all parameters; JAX refuses to train odd numbers of tokens on cuDNN."""
    wanted = tokens_and_gradients(mask, tokens, None)
    assert not by_xla
    found = tokens_and_gradients(mask, tokens, CudnnAttention())
    assert set(by_xla) == (set() if "keys" in mask else {8 if tokens == 8 else 10})
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=3e-2 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("tokens", "mask"),
    [(9, "both"), *(pytest.param(9, mask, marks=pytest.mark.slow) for mask in MASKS if mask != "both"),
     pytest.param(600, "both", marks=pytest.mark.slow)],
)  # fmt: skip
def test_blocks_give_the_same_results_with_splash_attention_as_with_einsum(mask, tokens):
    """Run the kernels in Pallas's interpreter; 600 tokens are five blocks."""
    wanted = tokens_and_gradients(mask, tokens, None)
    found = tokens_and_gradients(mask, tokens, SplashAttention(least_tokens=2, interpret=True))
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=3e-2 * np.abs(theirs).max())


def tokens_and_gradients(mask, tokens, fused):
    """Return the tokens of two blocks, their gradient and those of all parameters."""
    spec = dataclasses.replace(VISION, layers=2)
    blocks = build_model(ModelSpec(spec, None), drawn_parameters(ModelSpec(spec, None)), jnp.bfloat16).vision.blocks
    seen, random = MASKS[mask](tokens), np.random.default_rng(tokens)
    x, cotangent = (jnp.asarray(random.normal(size=(BATCH, tokens, spec.width)), jnp.bfloat16) for _ in range(2))

    blocks.block.attention.fused = fused
    graph, parameters = nnx.split(blocks)

    def both(parameters, x):
        mixed, backward = jax.vjp(lambda parameters, x: nnx.merge(graph, parameters)(x, *seen), parameters, x)
        return mixed, backward(cotangent)

    return jax.tree.map(lambda array: np.asarray(array, np.float64), jax.jit(both)(parameters, x))


@pytest.mark.parametrize(
    ("attention", "kind"),
    # JAX computes the gradient of every bias, an array of (b, h, q, k).
    [("causal", "Softmax CAUSAL"), ("masked", "Softmax PADDING"), ("full", "Softmax PADDING")],
)
def test_no_gradient_of_the_attention_bias_is_computed_for_texts_on_gpus(attention, kind, monkeypatch):
    """Lower the program for CUDA without its libraries; nine tokens, so that one of padding is added."""
    for name, value in (("check_cudnn_version", 91200), ("check_compute_capability", True)):
        monkeypatch.setattr(f"jax._src.cudnn.fused_attention_stablehlo.{name}", lambda *_, value=value: value)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.is_cuda_compute_capability_equal", lambda _: False)
    text = dataclasses.replace(TEXT, attention=attention, width=32, heads=4, context_length=9)
    spec = ModelSpec(None, text, text_head=HeadSpec("linear", 16))
    model = build_model(spec, drawn_parameters(spec), jnp.bfloat16)
    model.text.blocks.block.attention.fused = CudnnAttention()
    graph, parameters = nnx.split(model)
    ids = jnp.full((2, 9), 98)
    embed = jax.grad(lambda parameters: nnx.merge(graph, parameters).text_embeddings(ids, ids > 0).sum())
    program = jax.jit(embed).trace(parameters).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in program.splitlines() if "custom_call @__cudnn$fmha" in line]
    assert len(calls) == 2, "forward and backward, once for all blocks"
    for line in calls:
        assert all(part in line for part in kind.split()), line
    assert "ScaleBias" not in program


def test_device_precision_head_size_and_mask_select_the_implementation():
    @dataclasses.dataclass(frozen=True)
    class Device:
        platform: str
        compute_capability: str

    kernels = {
        ("gpu", "bfloat16", "7.5"): None, ("gpu", "bfloat16", "8.0"): CudnnAttention(),
        ("gpu", "bfloat16", "9.0"): CudnnAttention(), ("gpu", "bfloat16", "10.3"): CudnnAttention(),
        ("gpu", "float32", "9.0"): None, ("tpu", "bfloat16", ""): SplashAttention(), ("tpu", "float32", ""): None,
        ("cpu", "bfloat16", ""): None,
        ("gpu", "bfloat16", "gfx90a"): None,  # an AMD GPU has no cuDNN
    }  # fmt: skip
    for (platform, dtype, capability), expected in kernels.items():
        mesh = jax.sharding.Mesh(np.array([[Device(platform, capability)]]), AXES)
        assert fused_attention_on(mesh, dtype) == expected
    supports = CudnnAttention().supports
    assert supports(50, 64, None) and supports(77, 128, None)
    assert not supports(50, 20, None) and not supports(50, 136, None) and not supports(1, 64, None)
    assert not supports(9, 64, MASKS["causal and keys"](9)[1]), "it would be a bias"
    assert SplashAttention().supports(1024, 72, None) and not SplashAttention().supports(1023, 72, None)


def test_a_model_uses_the_attention_kernel_unless_attention_weights_are_requested(monkeypatch):
    head = HeadSpec("linear", 16)
    spec = ModelSpec(VISION, TEXT, head, head)
    model = build_model(spec, drawn_parameters(spec), jnp.bfloat16)
    mesh = make_mesh(jax.devices()[:1])
    causal_calls = []

    class Kernel(CudnnAttention):
        def __call__(self, query, key, value, causal=False, lengths=None):
            causal_calls.append(causal)
            return jnp.zeros_like(query)

    monkeypatch.setattr(attentions, "fused_attention_on", lambda *_: Kernel())
    use_fused_attention(model, mesh, "bfloat16")
    assert sum(isinstance(module, SelfAttention) for _, module in nnx.iter_modules(model)) == 2
    pixels, ids = jnp.zeros((1, 30, 30, 3)), jnp.full((1, 6), 98)
    nnx.jit(lambda model: (model.image_embeddings(pixels), model.text_embeddings(ids, ids > 0)))(model)
    assert causal_calls == [False, True], "only the text tower is causal"
    _, weights = nnx.jit(lambda model: model.vision.tokens_and_attention(pixels))(model)
    np.testing.assert_allclose(np.asarray(weights).sum(-1), 1, rtol=1e-5)
