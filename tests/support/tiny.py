"""Tiny models that tests make for themselves: random weights, a word-level tokenizer, a few hundred kilobytes."""

import dataclasses
import functools

import jax
import numpy as np
import tokenizers
from flax import nnx

from rococo_jax.checkpoints.parameters import build_model, parameter_shapes, parameters_of
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.encoders import Encoder
from rococo_jax.models import DualEncoder, HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.runtime import make_mesh

WORDS = "a the on in of two red blue green dog cat car man woman tree house ball boat sits runs near big small".split()


def tiny_spec(width: int = 32, attention: str = "causal") -> ModelSpec:
    """A CLIP-like spec of a few layers; with `attention="masked"` the text tower is BERT-like."""
    bert = attention == "masked"
    vision = VisionSpec(
        image_size=32, patch_size=8, width=width, layers=2, heads=4, mlp_width=2 * width, activation="quick_gelu",
        norm_eps=1e-5, class_token=True, patch_bias=False, norm_before_blocks=True, layer_scale=False, pooling="cls",
    )  # fmt: skip
    text = TextSpec(
        vocabulary_size=300, context_length=24, width=width, layers=2, heads=4, mlp_width=2 * width,
        activation="quick_gelu", norm_eps=1e-5, attention=attention, norm_after_blocks=bert,
        pooling="mean" if bert else "first_eos", eos_id=2, token_types=2 if bert else 0,
    )  # fmt: skip
    head = HeadSpec("linear", 16)
    return ModelSpec(vision=vision, text=text, vision_head=head, text_head=head)


def tiny_tokenizer(end: int = 2) -> Tokenizer:
    """Return a tokenizer of `WORDS`, single characters for other words, in `<s> ... </s>`; `</s>` has the id `end`."""
    characters = [chr(code) for code in range(33, 127)]
    # Each token once: two tokens of one id would be written out in an order that changes from process to process.
    tokens = dict.fromkeys(["<pad>", "<s>", "</s>", "<unk>", *WORDS, *characters])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    vocabulary |= {f"##{token}": len(vocabulary) + index for index, token in enumerate(characters)}
    vocabulary["</s>"] = end
    rust = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="<unk>"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    rust.normalizer = tokenizers.normalizers.Lowercase()
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", end)]
    )
    spec = TokenizerSpec(family="clip", cleaning="none", context_length=24, pad_id=0, eos_id=end)
    return Tokenizer(rust, spec)


def tiny_encoder(
    seed: int = 0, devices: int = 1, spec: ModelSpec | None = None, name: str = "tiny", end: int = 2
) -> Encoder:
    """A random dual encoder on the first `devices` devices; texts end with the id `end`."""
    spec = spec or tiny_spec()
    # A copy: training may donate the arrays of a model.
    model = build_model(spec, {path: array.copy() for path, array in _initial_parameters(spec, seed).items()})
    preprocessing = Preprocessing(shortest_edge=32, crop_size=(32, 32), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return Encoder(model, preprocessing, tiny_tokenizer(end), name=name, mesh=make_mesh(jax.devices()[:devices]))


def exportable_encoder() -> Encoder:
    """A tiny encoder that the Hugging Face form of CLIP can express: it pools at the highest id, which ends a text."""
    spec = tiny_spec()
    text = dataclasses.replace(spec.text, pooling="highest_id", eos_id=None)
    return tiny_encoder(spec=dataclasses.replace(spec, text=text), end=text.vocabulary_size - 1)


@functools.cache
def _initial_parameters(spec: ModelSpec, seed: int) -> dict[str, np.ndarray]:
    """Return the initial parameters of a new model, made once for all tests."""
    return jax.device_get(_initialise(spec, seed))


@functools.partial(jax.jit, static_argnums=0)  # one program instead of one for each operation
def _initialise(spec: ModelSpec, seed: int) -> dict[str, jax.Array]:
    return parameters_of(DualEncoder(spec, rngs=nnx.Rngs(jax.random.key(seed))))


def drawn_parameters(spec: ModelSpec, seed: int = 3) -> dict[str, np.ndarray]:
    """Random parameters by path, made by NumPy, which compiles nothing; scales and variances lie around 1."""
    rng, parameters = np.random.default_rng(seed), {}
    for path, shape in sorted(parameter_shapes(spec).items()):
        values = rng.normal(size=shape)
        if path.endswith(".kernel"):
            values /= np.sqrt(np.prod(shape[-2 - ("stem" in path or ".conv" in path or ".shortcut." in path) * 2 : -1]))
        else:
            values = 0.2 * values + path.endswith((".scale", ".variance"))
        parameters[path] = (
            np.abs(values).astype(np.float32) if path.endswith(".variance") else values.astype(np.float32)
        )
    return parameters


def random_captions(count: int, seed: int = 0, longest: int = 14) -> list[str]:
    """Return captions of one to `longest` words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest + 1))) for _ in range(count)]
