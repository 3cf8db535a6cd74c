"""How far each precision of the towers moves embeddings: full float32, `high` as TPUs and GPUs compute it, bfloat16.

    python experiments/precision.py MODEL --images coco/images --captions coco/captions_test.json [--count 64]
    python experiments/precision.py MODEL --images coco/images --annotations rococo/annotations

Processors compute float32 products in full, so `high` is emulated: operands are split (3 passes of bfloat16) or rounded
(TF32) before a float32 product, which is what the matrix units do but for the order of their sums. Printed for images
and for captions: the angle between the vectors and those of full float32 (largest and median, in radians); the largest
change of a cosine; and the share of images and captions that have another caption or image in the first place.

With `--annotations`, RoCOCO's R@1 and FR@1 instead, in percent, and of how many queries an answer turns: `gained` and
`lost` count hits of R@1 beside full float32. Heads compute in full float32, as they do in `high`.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet

from rococo_jax import evaluate
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.evaluation.results import PER_QUERY
from rococo_jax.models import attention, layers
from rococo_jax.runtime import enable_compilation_cache

Product = Callable[..., jax.Array]


def to_tf32(x: jax.Array) -> jax.Array:
    """Rounded to ten bits behind the point, half to even."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    bits = bits + jnp.uint32(0xFFF) + ((bits >> 13) & jnp.uint32(1))
    return jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFE000), jnp.float32)


def in_tf32(product: Product) -> Product:
    """One product of rounded operands."""
    return lambda left, right: product(to_tf32(left), to_tf32(right))


def in_three_passes(product: Product) -> Product:
    """high x high + high x low + low x high, with `low` what bfloat16 leaves of an operand."""

    def parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Not by a cast there and back, which the compiler may leave out.
        high = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
        return high, jax.lax.reduce_precision(x - high, exponent_bits=8, mantissa_bits=7)

    def passes(left: jax.Array, right: jax.Array) -> jax.Array:
        (left_high, left_low), (right_high, right_low) = parts(left), parts(right)
        return product(left_high, right_high) + (product(left_high, right_low) + product(left_low, right_high))

    return passes


def emulate(emulation: Callable[[Product], Product]) -> None:
    """Has every product of the towers computed so from here on; heads are meant to be applied elsewhere."""

    def dot(left, right, **options):
        return emulation(lambda a, b: jnp.dot(a, b, **options))(left, right)

    def einsum(subscripts, left, right, **options):
        return emulation(lambda a, b: jnp.einsum(subscripts, a, b, **options))(left, right)

    for module in (layers, attention):
        module.jnp = SimpleNamespace(**{**vars(jnp), "dot": dot, "einsum": einsum})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", required=True)
    parser.add_argument("--captions")
    parser.add_argument("--annotations", help="of RoCOCO, to be evaluated in each precision")
    parser.add_argument("--count", type=int, default=64, help="images, with all their captions")
    arguments = parser.parse_args()
    enable_compilation_cache()
    if arguments.annotations:
        evaluated(arguments)
        return
    data = read_captioned_images(arguments.images, arguments.captions, True)
    encoder = load_model(arguments.model)
    pixels = np.stack([encoder.prepare(_open(path)) for path in data.paths[: arguments.count]])
    captions = [text for text, image in zip(data.captions, data.caption_image, strict=True) if image < arguments.count]

    def vectors(model) -> tuple[np.ndarray, np.ndarray]:
        """Heads are those of full float32, as in an evaluation."""
        features = model.image_features(pixels), model.text_features(captions)
        layers.jnp = attention.jnp = jnp
        return encoder.project_image_features(features[0]), encoder.project_text_features(features[1])

    full, report = vectors(encoder), {}
    for name, emulation in (("tf32", in_tf32), ("3 x bfloat16", in_three_passes), ("bfloat16", None)):
        jax.clear_caches()
        if emulation is not None:
            emulate(emulation)
        model = load_model(arguments.model, dtype=jnp.float32 if emulation else jnp.bfloat16)
        report[name] = compared(full, vectors(model))
        print(json.dumps({name: report[name]}), flush=True)


def evaluated(arguments: argparse.Namespace) -> None:
    """Prints R@1 and FR@1 of every variant in full float32 and in both emulations of `high`."""
    project = Encoder._project

    def project_in_full(self, *rest):
        emulated, layers.jnp, attention.jnp = layers.jnp, jnp, jnp
        try:
            return project(self, *rest)
        finally:
            layers.jnp = attention.jnp = emulated

    Encoder._project = project_in_full
    full = None
    for name, emulation in (("float32", None), ("tf32", in_tf32), ("3 x bfloat16", in_three_passes)):
        jax.clear_caches()
        if emulation is not None:
            emulate(emulation)
        with tempfile.TemporaryDirectory() as out:
            places = {"images": arguments.images, "annotations": arguments.annotations, "allow_missing_images": True}
            tasks = evaluate(arguments.model, **places, mixed_galleries=(), out=out, precision="float32")["tasks"]
            rows = pyarrow.parquet.read_table(Path(out) / PER_QUERY).to_pandas()
        rows = rows.sort_values(["task", "variant", "query"])
        hits, first = (rows["rank"] == 1).to_numpy(), rows["top1_text"].fillna("").to_numpy()
        full = (hits, first) if full is None else full
        about = {"queries": len(hits), "gained": int((hits & ~full[0]).sum()), "lost": int((full[0] & ~hits).sum())}
        about["other_first_text"] = int((first != full[1]).sum())
        figures = {f"{task}/{variant}": {key: value for key, value in metrics.items() if key in ("r1", "fr1")}
                   for task, variants in tasks.items() for variant, metrics in variants.items()}  # fmt: skip
        print(json.dumps({name: about | figures}), flush=True)


def _open(path):
    from rococo_jax.data.images import open_image

    return open_image(path)


def compared(full: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    found = {}
    for what, one, two in zip(("images", "captions"), full, other, strict=True):
        angles = 2 * np.arcsin(np.linalg.norm(one.astype(float) - two.astype(float), axis=1) / 2)
        found |= {f"{what}_largest": float(angles.max()), f"{what}_median": float(np.median(angles))}
    cosines = [images @ texts.T for images, texts in (full, other)]
    found["largest_change_of_a_cosine"] = float(np.abs(cosines[0] - cosines[1]).max())
    found["other_first_caption"] = float((cosines[0].argmax(1) != cosines[1].argmax(1)).mean())
    found["other_first_image"] = float((cosines[0].argmax(0) != cosines[1].argmax(0)).mean())
    return found


if __name__ == "__main__":
    main()
