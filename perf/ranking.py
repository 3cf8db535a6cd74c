"""Time ranking, its matrix product alone and the sort that it replaces; print one JSON object.

    python perf/ranking.py [--images 5000] [--captions 50010] [--width 512] [--repeats 3]
    python perf/ranking.py --images 100000 --captions 500000 --once 0.05      minutes: 51 TFLOP

Embeddings are random unit vectors, with ten captions per image, half of them altered. The fastest of alternating runs
in one process counts (compilation is reported separately):

- `ranking`: `rank_statistics`, similarities included;
- `product`: the same product in the same tiles, keeping only the largest score per query;
- `numpy_product`: `queries @ gallery.T` in NumPy, 500 rows at a time, keeping the largest score per query;
- `numpy_argsort`: the same product, each row sorted and reversed, then a look-up of an image's captions.

Peak memory (resident set) is measured in a new process that creates the embeddings and ranks once. `--once SHARE` ranks
once, in this process, and computes the product alone for that share of the queries before and after; their mean is
scaled to all queries, to which its time is proportional.
"""

import argparse
import json
import os
import sys

import jax
import jax.numpy as jnp
import measuring
import numpy as np
from jax import lax
from measuring import measure, unit_vectors

from rococo_jax.progress import progress
from rococo_jax.similarity import rank_statistics
from rococo_jax.similarity.ranks import tile_shape


def make_groups(images: int, captions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return query groups, gallery groups and altered flags; the first half of an image's captions are originals."""
    owner = np.arange(captions) * images // captions
    first = np.searchsorted(owner, np.arange(images))
    size = np.bincount(owner, minlength=images)
    return np.arange(images), owner, (np.arange(captions) - first[owner]) * 2 >= size[owner]


def rank(queries: np.ndarray, gallery: np.ndarray):
    query_group, gallery_group, altered = make_groups(len(queries), len(gallery))
    groups = {"query_group": query_group, "gallery_group": gallery_group, "gallery_altered": altered}
    return rank_statistics(queries, gallery, **groups)


def bare_product(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Compute the product alone, in the tiles of the ranking code."""
    of_queries, of_gallery = tile_shape(jax.default_backend())
    tiles = jnp.asarray(_whole_tiles(queries, of_queries))
    best = jnp.full(tiles.shape[:2], -jnp.inf, jnp.float32)
    before = best
    for start in range(0, len(gallery), of_gallery):
        block = jax.device_put(_whole_tiles(gallery[start : start + of_gallery], of_gallery)[0])
        before.block_until_ready()
        before, best = best, _raise_best(best, tiles, block)
    return np.asarray(best).reshape(-1)[: len(queries)]


def _whole_tiles(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows, ((0, -len(rows) % size), (0, 0))).reshape(-1, size, rows.shape[1])


@jax.jit
def _raise_best(best, tiles, block):
    def one(_, part):
        tile, best = part
        scores = lax.dot_general(tile, block, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
        return None, jnp.maximum(best, scores.max(axis=1))

    return lax.scan(one, None, (tiles, best))[1]


def numpy_product(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    starts = range(0, len(queries), 500)
    return np.concatenate([(queries[start : start + 500] @ gallery.T).max(axis=1) for start in starts])


def numpy_argsort(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Return the rank of the best original caption of each image, from a full sort of every row."""
    _, owner, altered = make_groups(len(queries), len(gallery))
    ranks = np.empty(len(queries), int)
    with progress("sorting in NumPy", len(queries), "queries") as advance:
        for start in range(0, len(queries), 500):
            for query, row in enumerate(queries[start : start + 500] @ gallery.T, start):
                order = np.argsort(row)[::-1]
                originals = np.flatnonzero((owner == query) & ~altered)
                ranks[query] = min(np.flatnonzero(order == item)[0] for item in originals) + 1
            advance(500)
    return ranks


def ranked_once(arguments: argparse.Namespace) -> dict:
    """Measure time and memory of one ranking, and the time of the product alone for some queries."""
    queries = unit_vectors(arguments.images, arguments.width, 0)
    gallery = unit_vectors(arguments.captions, arguments.width, 1)
    some = queries[: max(1, round(arguments.once * len(queries)))]
    tile = tile_shape(jax.default_backend())
    rank(queries[: tile[0]], gallery[: 2 * tile[1]]), bare_product(some[: tile[0]], gallery[: 2 * tile[1]])  # compile
    before = measure(lambda: bare_product(some, gallery))
    ranking = measure(lambda: rank(queries, gallery))
    peak = measuring.peak_memory()
    after = measure(lambda: bare_product(some, gallery))
    scale = len(queries) / len(some) / 2
    product, of_product = (scale * (one + other) for one, other in zip(before, after, strict=True))
    return {
        "shape": [arguments.images, arguments.captions, arguments.width],
        "seconds": {"ranking": round(ranking.seconds, 1), "product": round(product, 1)},
        "processor_seconds": {"ranking": round(ranking.processor, 1), "product": round(of_product, 1)},
        "seconds_of_the_share": [round(each.seconds, 2) for each in (before, after)],
        "ranking_over_product": round(ranking.seconds / product, 3),
        "ranking_over_product_in_processor_time": round(ranking.processor / of_product, 3),
        "peak_memory_MB": round(peak / 1e6, 1),
        "of_these_embeddings_MB": round((queries.nbytes + gallery.nbytes) / 1e6, 1),
    }


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--captions", type=int, default=50010)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once", type=float, metavar="SHARE", help="rank once, and multiply a share of the queries")
    parser.add_argument("--only-memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(ranked_once(arguments)))
        return
    # Measured first: on Linux the peak of a child includes what its parent held when it was started.
    memory = None if arguments.only_memory else measuring.run_self(*sys.argv[1:], "--only-memory")
    queries = unit_vectors(arguments.images, arguments.width, 0)
    gallery = unit_vectors(arguments.captions, arguments.width, 1)
    if arguments.only_memory:
        rank(queries, gallery)
        print(measuring.peak_memory() / 1e6)
        return

    ways = {"ranking": rank, "product": bare_product, "numpy_product": numpy_product, "numpy_argsort": numpy_argsort}
    ways = {name: lambda way=way: way(queries, gallery) for name, way in ways.items()}
    first = {name: measure(ways[name]).seconds for name in ("ranking", "product")}
    times = measuring.alternate(ways, 1)
    del ways["numpy_argsort"]  # so slow that once is enough
    for name, more in measuring.alternate(ways, arguments.repeats - 1).items():
        times[name] += more
    best = {name: measuring.fastest(each).seconds for name, each in times.items()}
    report = {
        "shape": [arguments.images, arguments.captions, arguments.width],
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "seconds": measuring.rounded(best, 3),
        "seconds_with_compilation": round(first["ranking"], 3),
        "ranking_over_product": round(best["ranking"] / best["product"], 3),
        "ranking_over_numpy_product": round(best["ranking"] / best["numpy_product"], 3),
        "numpy_argsort_over_ranking": round(best["numpy_argsort"] / best["ranking"], 2),
        "peak_memory_MB": round(memory, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
