"""Alter every caption of a benchmark; report wall time, peak memory and counts of faults.

    python experiments/build_benchmark.py MODEL --captions FILE --out DIR [--shuffle SEED]

Writes every variant as an annotation file into DIR. Prints as JSON the seconds, the peak memory, the files' SHA-256 and
counts that must be zero: no-ops, replacements that occur in an original of the image, and captions that differ from
their original in more than the one recorded word (a replacement inside a longer word or at a second place).
`--shuffle` alters the images in another order and writes the items in the file's order; the bytes are the same.
"""

import argparse
import json
import random
import resource
import time
from pathlib import Path

from rococo_jax.benchmarks.rococo.generate import AlteredSet, alter_captions, write_altered
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.encoders import load_model
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.words import plain, split_words
from rococo_jax.progress import progress
from rococo_jax.runtime import enable_compilation_cache
from rococo_jax.storage import hash_file


def faults(altered: AlteredSet) -> dict[str, int]:
    """Counts that must be zero, taken from the altered strings alone."""
    counts = dict.fromkeys(("no_ops", "more_than_one_word_changed", "words_of_an_original"), 0)
    for item, changes in zip(altered.items, altered.alterations, strict=True):
        present = {plain(word.text) for original in item.originals for word in split_words(original)}
        for original, caption, change in zip(item.originals, item.altered, changes, strict=True):
            if caption is None:
                continue
            word = split_words(original)[change.word_index]
            rebuilt = original[: word.start] + change.new + original[word.end :]
            counts["no_ops"] += plain(caption) == plain(original)
            counts["more_than_one_word_changed"] += caption != rebuilt or change.old != word.text
            counts["words_of_an_original"] += any(plain(new.text) in present for new in split_words(change.new))
    return counts


def in_file_order(altered: AlteredSet, order: list[int]) -> AlteredSet:
    """Undo the shuffle: item `i` of the result is item `order.index(i)` of `altered`."""
    place = sorted(range(len(order)), key=order.__getitem__)
    items, alterations = (tuple(values[i] for i in place) for values in (altered.items, altered.alterations))
    return AlteredSet(altered.variant, items, alterations, dict(sorted(altered.unaltered.items())))


def main() -> None:
    """Alter, write, count faults and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model directory, Hugging Face folder, or hub name")
    parser.add_argument("--captions", required=True, help="captions file")
    parser.add_argument("--out", type=Path, required=True, help="folder of the annotations")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="alter the images in another order")
    arguments = parser.parse_args()
    enable_compilation_cache()
    images = read_captions(arguments.captions)
    order = list(range(len(images)))
    if arguments.shuffle is not None:
        random.Random(arguments.shuffle).shuffle(order)
    encoder = load_model(arguments.model)
    captions = sum(len(image.captions) for image in images)
    start = time.perf_counter()
    with progress("influence", captions, "captions") as advance:
        made = alter_captions(encoder, [images[i] for i in order], on_progress=advance)
    seconds = time.perf_counter() - start
    report = {"captions": captions, "seconds": round(seconds, 1)}
    for variant in VARIANTS:
        altered = in_file_order(made[variant], order)
        path = arguments.out / f"{variant}.json"
        write_altered(path, altered, {"model": encoder.describe()})
        report[variant] = {**faults(altered), "unaltered": dict(altered.unaltered), "sha256": hash_file(path)}
    report["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
