"""How far each precision of the towers moves embeddings: full float32, `high`, what else GPUs offer, bfloat16.

    python experiments/precision.py MODEL --images coco/images --captions coco/captions_test.json [--count 64]
    python experiments/precision.py MODEL --images coco/images --annotations rococo/annotations --out FOLDER

Processors compute float32 products in full, so others are emulated: before a float32 product operands are split (3
passes of bfloat16, our `high`), rounded to the nearest TF32, or cut off to TF32, as matrix units do with operands that
nobody rounded before. Only the order of sums differs. Emulated are the products that are traced at the precision
`high`, those of the towers but for convolutions; heads are computed in full float32, as in every evaluation.

Printed for images and for captions: the angle between the vectors and those of full float32 (largest and median, in
radians); the largest change of a cosine; and the share of images and captions that have another caption or image in the
first place.

With `--annotations`, RoCOCO's R@1 and FR@1 instead, in percent, with the paired difference from full float32 and its
95 % interval over images, and of how many queries an answer turns: `gained` and `lost` count hits of R@1 beside full
float32. Results of each precision are kept in a folder of `--out`; the same call again computes the missing ones.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet

from rococo_jax import evaluate
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.data.pictures import open_image
from rococo_jax.encoders import load_encoder
from rococo_jax.encoders.programs import Compute
from rococo_jax.evaluation.results import PER_QUERY
from rococo_jax.metrics.paired import paired_differences
from rococo_jax.report.across_seeds import read_image_hits
from rococo_jax.runtime import enable_compilation_cache

Product = Callable[..., jax.Array]
# Of a float32 behind the point: 23 bits, of which TF32 has 10.
_MORE_THAN_TF32 = 0x1FFF


def to_tf32(x: jax.Array) -> jax.Array:
    """Rounded to ten bits behind the point, half to even."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    bits = bits + jnp.uint32(_MORE_THAN_TF32 // 2) + ((bits >> 13) & jnp.uint32(1))
    return jax.lax.bitcast_convert_type(bits & jnp.uint32(~_MORE_THAN_TF32 & 0xFFFFFFFF), jnp.float32)


def cut_to_tf32(x: jax.Array) -> jax.Array:
    """The first ten bits behind the point."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type(bits & jnp.uint32(~_MORE_THAN_TF32 & 0xFFFFFFFF), jnp.float32)


def of_operands(change: Callable[[jax.Array], jax.Array]) -> Callable[[Product], Product]:
    """One product of changed operands."""
    return lambda product: lambda left, right: product(change(left), change(right))


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


EMULATIONS = {
    "tf32": of_operands(to_tf32),
    "cut": of_operands(cut_to_tf32),
    "3xbf16": in_three_passes,
}


@contextlib.contextmanager
def emulated(emulation: Callable[[Product], Product]) -> Iterator[None]:
    """Computes products that are traced in the block at the precision `high` so."""
    dot, einsum = jnp.dot, jnp.einsum

    def changed(product: Product, left: jax.Array, right: jax.Array, options: dict) -> jax.Array:
        if options.get("precision") != jax.lax.Precision.HIGH:
            return product(left, right, **options)
        full = options | {"precision": jax.lax.Precision.HIGHEST}
        return emulation(lambda a, b: product(a, b, **full))(left, right)

    jax.clear_caches()
    jnp.dot = lambda left, right, **options: changed(dot, left, right, options)
    jnp.einsum = lambda subscripts, *both, **options: changed(
        lambda a, b, **more: einsum(subscripts, a, b, **more), *both, options
    )
    try:
        yield
    finally:
        jnp.dot, jnp.einsum = dot, einsum
        jax.clear_caches()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", required=True)
    parser.add_argument("--captions")
    parser.add_argument("--annotations", help="of RoCOCO, to be evaluated in each precision")
    parser.add_argument("--out", default="precision", type=Path, help="folder of the results of each precision")
    parser.add_argument("--only", default=",".join(EMULATIONS), help="names of emulations, by commas")
    parser.add_argument("--count", type=int, default=64, help="images, with all their captions")
    arguments = parser.parse_args()
    enable_compilation_cache()
    if arguments.annotations:
        compare_evaluations(arguments)
    else:
        compare_vectors(arguments)


def compare_vectors(arguments: argparse.Namespace) -> None:
    """Prints how far each precision moves the vectors."""
    data = read_captioned_images(arguments.images, arguments.captions, True)
    images = [open_image(path) for path in data.paths[: arguments.count]]
    captions = [text for text, image in zip(data.captions, data.caption_image, strict=True) if image < arguments.count]

    def vectors(precision: str) -> tuple[np.ndarray, np.ndarray]:
        encoder = load_encoder(arguments.model, compute=Compute(precision))
        return encoder.encode_image(images), encoder.encode_text(captions)

    full = vectors("float32")
    for name, emulation in EMULATIONS.items():
        with emulated(emulation):
            print(json.dumps({name: compared(full, vectors("high"))}), flush=True)
    print(json.dumps({"bfloat16": compared(full, vectors("bfloat16"))}), flush=True)


def compare_evaluations(arguments: argparse.Namespace) -> None:
    """Prints R@1 and FR@1 of every variant in full float32 and in every emulation of `high`."""
    places = {"images": arguments.images, "annotations": arguments.annotations, "allow_missing_images": True}

    def results(name: str, precision: str) -> dict:
        out = arguments.out / name
        return evaluate(arguments.model, **places, mixed_galleries=(), out=out, precision=precision)["tasks"]

    def rows(name: str) -> tuple[np.ndarray, np.ndarray, dict]:
        path = arguments.out / name / PER_QUERY
        table = pyarrow.parquet.read_table(path).to_pandas().sort_values(["task", "variant", "query"])
        return (table["rank"] == 1).to_numpy(), table["top1_text"].fillna("").to_numpy(), read_image_hits(path)

    print(json.dumps({"float32": figures(results("float32", "float32"))}), flush=True)
    hits, first, by_image = rows("float32")
    for name in arguments.only.split(","):
        with emulated(EMULATIONS[name]):
            tasks = results(name, "high")
        other_hits, other_first, others = rows(name)
        about = {
            "queries": len(hits),
            "gained": int((other_hits & ~hits).sum()),
            "lost": int((hits & ~other_hits).sum()),
            "other_first_text": int((first != other_first).sum()),
        }
        differences = {}
        for (task, variant), own in by_image.items():
            for metric in own.hits.keys() & {"r1", "fr1"}:
                columns = own.hits[metric][:, None], own.queries[:, None]
                (found,) = paired_differences(others[task, variant].hits[metric][:, None], *columns)
                values = [round(value, 2) for value in (found.points, found.low, found.high)]
                differences[f"{task}/{variant}/{metric}"] = values
        print(json.dumps({name: about | figures(tasks) | {"differences": differences}}), flush=True)


def figures(tasks: dict) -> dict[str, dict[str, float]]:
    """R@1 and FR@1 of results, by task and variant."""
    return {
        f"{task}/{variant}": {key: value for key, value in metrics.items() if key in ("r1", "fr1")}
        for task, variants in tasks.items()
        for variant, metrics in variants.items()
    }


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
