"""Compare altering the word of lowest, random and highest influence.

    python experiments/sensitivity.py MODEL --images DIR --captions FILE [--influence-model M] [--variants V ...]

Alters the captions for every seed and choice of word and evaluates the model (image-to-text, protocol strict). Prints
R@1, its drop from the clean captions and FR@1: means over the seeds with 95 % intervals over images (the seeds' runs
resampled together); and for each variant the difference of lowest and highest, paired by image.
`--influence-model` takes the influence from another model than the evaluated one.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.rococo.annotations import Annotation, AnnotationSet
from rococo_jax.benchmarks.rococo.benchmark import tasks_of_set
from rococo_jax.benchmarks.rococo.generate import alter_captions, candidate_influence
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.data.image_files import find_images
from rococo_jax.encoders import load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.metrics.intervals import Counted, image_draws, intervals, mean_of_runs
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.runtime import cache_folder, enable_compilation_cache

SELECTIONS = ("lowest", "random", "highest")
PROTOCOL = "strict"


def altered_sets(encoder, images, variants, seeds, tower) -> AnnotationSet:
    """Clean captions, and one variant named `VARIANT/SELECTION/SEED` for every choice."""
    influences = candidate_influence(tower, images, shipped_lexicon())
    annotations = {}
    for selection in SELECTIONS:
        for seed in seeds:
            made = alter_captions(encoder, images, variants, seed=seed, select=selection, influences=influences)
            for variant, altered in made.items():
                name = f"{variant}/{selection}/{seed}"
                annotations[name] = Annotation(name, altered.items, Path(name), "own")
    return AnnotationSet(tuple(images), annotations, (), None)


def paired_difference(first: Sequence[Counted], second: Sequence[Counted]) -> dict[str, list[float]]:
    """R@1 and FR@1 of the first runs minus those of the second, in points: `[low, mean, high]`, 95 % over images."""
    means = [np.mean([run.counts for run in runs], axis=0) for runs in (first, second)]
    columns = dict(zip(first[0].columns, 100 * (means[0] - means[1]).T, strict=True))
    differences = {"r1": columns["r1"], "fr1": columns["top1_own_altered"] + columns["top1_other_altered"]}
    draws = image_draws(len(means[0]))
    result = {}
    for name, each in differences.items():
        low, high = np.percentile(draws @ each / len(each), [2.5, 97.5])
        result[name] = [round(float(value), 2) for value in (low, each.mean(), high)]
    return result


def main() -> None:
    """Print one JSON line per variant and choice of word."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a dual encoder: model directory, Hugging Face folder, or hub name")
    parser.add_argument("--images", required=True, help="folder of images")
    parser.add_argument("--captions", required=True, help="captions file")
    parser.add_argument("--influence-model", help="model whose influence chooses the word (default: MODEL)")
    parser.add_argument("--variants", nargs="+", default=["same_concept", "diff_concept"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    enable_compilation_cache()
    images = read_captions(arguments.captions)
    paths, missing = find_images([image.image for image in images], arguments.images)
    images = [image for image in images if image.image not in set(missing)]
    encoder = load_model(arguments.model)
    tower = load_model(arguments.influence_model) if arguments.influence_model else encoder
    annotations = altered_sets(encoder, images, arguments.variants, arguments.seeds, tower)
    benchmark = tasks_of_set(annotations, PROTOCOL)
    cache = EmbeddingCache(cache_folder() / "embeddings")
    pixels = embed_images(encoder, [paths[name] for name in benchmark.images], cache)
    texts = embed_texts(encoder, benchmark.texts, cache)
    embeddings = Embeddings({ORIGINALS: pixels, TEXTS: texts})
    to_text = [task for task in benchmark.tasks if task.name == "image_to_text"]
    counted = {task.variant: task.score(embeddings, encoder.mesh).counted for task in to_text}
    clean = counted["clean"]
    clean_r1 = clean.values()["r1"]
    print(json.dumps({"images": len(images), "clean r1": round(clean_r1, 2)}))
    for variant in arguments.variants:
        for selection in SELECTIONS:
            runs = [counted[f"{variant}/{selection}/{seed}"] for seed in arguments.seeds]
            values, bounds = mean_of_runs(runs, clean), intervals(runs, clean)
            line = {"variant": variant, "altered word": selection}
            for name in ("r1", "fr1"):
                line[name] = round(values[name], 2)
                line[f"{name} interval"] = [round(value, 2) for value in bounds[name]]
            for name in ("drop", "drop_points"):
                line[name] = None if values[name] is None else round(values[name], 2)
            line["drop interval"] = bounds.get("drop")
            print(json.dumps(line))
        lowest, highest = (
            [counted[f"{variant}/{selection}/{seed}"] for seed in arguments.seeds]
            for selection in ("lowest", "highest")
        )
        print(json.dumps({"variant": variant, "lowest less highest": paired_difference(lowest, highest)}))


if __name__ == "__main__":
    main()
