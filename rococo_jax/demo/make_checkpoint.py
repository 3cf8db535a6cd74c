"""Makes the demo's model. The one that comes with the package was made with

    python -m rococo_jax.demo.make_checkpoint rococo_jax/demo/assets/plain

in 1,360 s of processor time, the drawing of the 20,000 scenes not counted.

A dual encoder of about a million parameters, trained from nothing on drawn scenes with the plain contrastive loss

    L = 1/2 mean_i -log softmax_j(tau s(I_i, T_j))[i] + 1/2 mean_j -log softmax_i(tau s(I_i, T_j))[j]

of CLIP (arXiv 2103.00020), where caption i belongs to image i and no image is twice in a batch. The model is meant to
retrieve well and to be fooled: nothing in this loss asks it to read every word.
"""

import argparse
import functools
import math
import os
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt8

from rococo_jax.checkpoints import save_model
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.demo.benchmark import map_in_processes
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.make_tokenizer import make_tokenizer
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.encoding import Encoder
from rococo_jax.models import DualEncoder, HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.progress import progress
from rococo_jax.storage import file_by_rename

IMAGE_SIZE, DIM = 96, 96
PREPROCESSING = Preprocessing(exact_size=(IMAGE_SIZE, IMAGE_SIZE), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
# One length means one compiled step. Captions have 13 tokens on average; the few above 24 lose their end.
_TOKENS = 24
_HIGHEST_SCALE = math.log(100)


def demo_spec(tokenizer: Tokenizer) -> ModelSpec:
    """The architecture: two small transformers that average their tokens."""
    vision = VisionSpec(
        image_size=IMAGE_SIZE,
        patch_size=16,
        width=128,
        layers=4,
        heads=4,
        mlp_width=256,
        activation="gelu",
        norm_eps=1e-6,
        class_token=False,
        patch_bias=True,
        norm_before_blocks=False,
        layer_scale=False,
        pooling="mean",
    )
    text = TextSpec(
        vocabulary_size=tokenizer.rust.get_vocab_size(),
        context_length=tokenizer.spec.context_length,
        width=96,
        layers=3,
        heads=4,
        mlp_width=192,
        activation="gelu",
        norm_eps=1e-6,
        attention="masked",
        norm_after_blocks=False,
        pooling="mean",
    )
    return ModelSpec(vision, text, HeadSpec("linear", DIM), HeadSpec("linear", DIM))


def _pixels_of(index: int) -> UInt8[np.ndarray, "h w 3"]:
    # Half the benchmark's fineness: what is lost is lost again in the resize.
    return PREPROCESSING.resize(draw_scene(make_scene("train", 0, index), size=192, fineness=2))


def draw_scenes(count: int, folder: Path) -> UInt8[np.ndarray, "scenes h w 3"]:
    """The first `count` training scenes as the model sees them, kept in `folder` for the next run."""
    path = folder / f"scenes_{count}_{IMAGE_SIZE}.npy"
    if not path.exists():
        with file_by_rename(path) as temporary, progress("drawing", count, "scenes") as advance:
            shape = (count, IMAGE_SIZE, IMAGE_SIZE, 3)
            pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            for index, drawn in enumerate(map_in_processes(_pixels_of, range(count))):
                pixels[index] = drawn
                advance(1)
            pixels.flush()
    return np.load(path)


def contrastive_loss(
    model: DualEncoder,
    pixels: Float[Array, "items h w 3"],
    ids: Int[Array, "items t"],
    mask: Bool[Array, "items t"],
) -> Float[Array, ""]:
    """The loss above."""
    images, texts = model.image_embeddings(pixels), model.text_embeddings(ids, mask)
    logits = jnp.exp(model.logit_scale[...]) * images @ texts.T
    both = jax.nn.log_softmax(logits, axis=1) + jax.nn.log_softmax(logits, axis=0)
    return -jnp.mean(jnp.diagonal(both)) / 2


def make_optimizer(steps: int, rate: float) -> optax.GradientTransformation:
    """AdamW with warmup and cosine decay; vectors and scalars do not decay."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(steps // 20, 1), steps)

    def is_matrix(params):
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    adamw = optax.adamw(schedule, b2=0.98, weight_decay=0.05, mask=is_matrix)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def _step(graph, optimizer, params, moments, images, ids, mask):
    def loss_of(params):
        return contrastive_loss(nnx.merge(graph, params), PREPROCESSING.normalise(images), ids, mask)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, moments = optimizer.update(gradients, moments, params)
    params = optax.apply_updates(params, updates)
    scale = params["logit_scale"]
    scale[...] = jnp.minimum(scale[...], _HIGHEST_SCALE)
    return params, moments, loss


def train(images: np.ndarray, tokenizer: Tokenizer, steps: int, batch: int, rate: float) -> DualEncoder:
    """Trains on `batch` scenes, each with one of its captions, a step; the order is made from a fixed seed."""
    count = len(images)
    texts = [text for index in range(count) for text in captions_of(make_scene("train", 0, index))]
    ids, mask = (rows[:, :_TOKENS].reshape(count, 5, _TOKENS) for rows in tokenizer.pad(tokenizer.encode(texts)))
    model = DualEncoder(demo_spec(tokenizer), rngs=nnx.Rngs(0))
    graph, params = nnx.split(model)
    optimizer = make_optimizer(steps, rate)
    moments = optimizer.init(params)
    random, order = np.random.default_rng(0), np.empty(0, np.int64)
    with progress("training", steps, "steps") as advance:
        for step in range(steps):
            if len(order) < batch:
                order = random.permutation(count)
            scenes, order = order[:batch], order[batch:]
            chosen = scenes, random.integers(5, size=batch)
            params, moments, loss = _step(graph, optimizer, params, moments, images[scenes], ids[chosen], mask[chosen])
            if step % 50 == 0 or step == steps - 1:
                print(f"step {step}: loss {float(loss):.3f}, {time.process_time():.0f} s of processor time", flush=True)
            advance(1)
    return nnx.merge(graph, params)


def main() -> None:
    """Draws, trains and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the model directory to write")
    parser.add_argument("--scenes", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()), help="where drawn scenes are kept")
    arguments = parser.parse_args()
    start = time.monotonic()
    tokenizer = make_tokenizer()
    images = draw_scenes(arguments.scenes, arguments.cache)
    model = train(images, tokenizer, arguments.steps, arguments.batch, arguments.rate)
    print(f"{time.monotonic() - start:.0f} s on {os.cpu_count()} cores")
    made_by = {"made_by": "rococo_jax.demo.make_checkpoint", "loss": "contrastive"}
    made_by |= {key: getattr(arguments, key) for key in ("scenes", "steps", "batch", "rate")}
    save_model(arguments.out, Encoder(model, PREPROCESSING, tokenizer, made_by, arguments.out.name))


if __name__ == "__main__":
    main()
