"""How often the word of lowest influence is the word that the published RoCOCO captions replaced.

    python experiments/influence_agreement.py MODEL --annotations DIR [--pooling cls] [--method mask] [--one-in 4]

In some 21,900 captions all four published variants replace one same word. Each caption's candidates are ranked by
influence; the figure is the share of captions where the published word comes first (lowest, highest), or would by
chance (random). Rules for which words are candidates:

    all source words         every word that the benchmark replaces somewhere: knows the captions it is scored on
    shipped lexicon          nouns of the shipped lexicon, which has never seen the benchmark
    replaced in r % or more  words that the benchmark replaces in at least r % of their occurrences, counted on the
                             other half of the images (of odd number for those of even number and the other way
                             round); where no word of a caption is left, the word of the highest share

Nothing of a caption, nor of any caption of its image, decides its own candidates under the last two rules.
"""

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from flax import nnx

from rococo_jax.alter.influence import METHODS, word_influence
from rococo_jax.alter.lexicon import shipped_lexicon
from rococo_jax.alter.recovery import common_change
from rococo_jax.alter.words import plain, split_words
from rococo_jax.checkpoints import load_model
from rococo_jax.data.annotations import AnnotationSet, read_annotation_folder
from rococo_jax.encoding import Encoder
from rococo_jax.progress import progress
from rococo_jax.runtime import keep_compiled_programs

SHARES = (0.02, 0.05, 0.1, 0.15, 0.2)
# Stand-ins for words seen fewer than three times on the other half: nouns of the lexicon, and other words.
FEW, SHARE_OF_NOUNS, SHARE_OF_OTHERS = 3, 0.1, 0.02


class Comparable(NamedTuple):
    """A caption whose published variants all replace word `replaced`; `image` is its image's number."""

    image: int
    caption: str
    words: tuple[str, ...]
    replaced: int


def comparable_captions(annotations: AnnotationSet) -> list[Comparable]:
    """The captions in which all variants replace one same word."""
    variants = annotations.variants
    found = []
    for number, image in enumerate(annotations.clean):
        for k, caption in enumerate(image.captions):
            altered = {name: variant.items[number].altered[k] for name, variant in variants.items()}
            change = common_change(caption, altered)
            if change is not None:
                words = tuple(plain(word.text) for word in split_words(caption))
                found.append(Comparable(number, caption, words, change[0]))
    return found


def shares_on_other_half(captions: Sequence[Comparable]) -> tuple[dict[str, float], dict[str, float]]:
    """For images of even and of odd number: word -> in which share of its occurrences it was replaced elsewhere."""
    lexicon = shipped_lexicon()
    words = {word for each in captions for word in each.words}
    result = []
    for half in (0, 1):
        others = [each for each in captions if each.image % 2 != half]
        seen = Counter(word for each in others for word in each.words)
        replaced = Counter(each.words[each.replaced] for each in others)

        def share(word: str, seen=seen, replaced=replaced) -> float:
            if seen[word] >= FEW:
                return replaced[word] / seen[word]
            prior = SHARE_OF_NOUNS if lexicon.find(word) else SHARE_OF_OTHERS
            return (replaced[word] + FEW * prior) / (seen[word] + FEW)

        result.append({word: share(word) for word in words})
    return result[0], result[1]


Rule = Callable[[Comparable], list[int]]


def candidate_rules(captions: Sequence[Comparable]) -> dict[str, Rule]:
    """Name -> rule that gives a caption's candidates."""
    sources = {each.words[each.replaced] for each in captions}
    lexicon, halves = shipped_lexicon(), shares_on_other_half(captions)
    rules: dict[str, Rule] = {
        "all source words": lambda each: [i for i, word in enumerate(each.words) if word in sources],
        "shipped lexicon": lambda each: [i for i, word in enumerate(each.words) if lexicon.find(word)],
    }
    for least in SHARES:

        def often(each: Comparable, least=least) -> list[int]:
            shares = [halves[each.image % 2][word] for word in each.words]
            return [i for i, share in enumerate(shares) if share >= least] or [int(np.argmax(shares))]

        rules[f"replaced in {100 * least:.0f} % or more"] = often
    return rules


def agreement(captions: Sequence[Comparable], influence: Sequence[np.ndarray], rule: Rule) -> dict[str, float]:
    """Percentages over all captions; `interval` is half the width of the 95 % interval of `lowest`, over images."""
    lowest, highest, random, counts = [], [], [], []
    for each, values in zip(captions, influence, strict=True):
        candidates = rule(each)
        counts.append(len(candidates))
        ranked = [values[i] for i in candidates]
        lowest.append(bool(candidates) and candidates[int(np.argmin(ranked))] == each.replaced)
        highest.append(bool(candidates) and candidates[int(np.argmax(ranked))] == each.replaced)
        random.append((each.replaced in candidates) / max(len(candidates), 1))
    return {
        "lowest": 100 * float(np.mean(lowest)),
        "interval": _half_interval(np.array(lowest, float), np.array([each.image for each in captions])),
        "random": 100 * float(np.mean(random)),
        "highest": 100 * float(np.mean(highest)),
        "candidates": float(np.mean(counts)),
    }


def _half_interval(hits: np.ndarray, images: np.ndarray, draws: int = 1000) -> float:
    """Bootstrap over images, since captions of one image are not independent."""
    _, image = np.unique(images, return_inverse=True)
    sums, counts = np.bincount(image, hits), np.bincount(image)
    chosen = np.random.default_rng(0).integers(0, len(sums), (draws, len(sums)))
    low, high = np.percentile(100 * sums[chosen].sum(1) / counts[chosen].sum(1), [2.5, 97.5])
    return float(high - low) / 2


def with_pooling(encoder: Encoder, pooling: str) -> Encoder:
    """The same text tower, pooled in another way."""
    model = nnx.clone(encoder.model)
    model.text.spec = dataclasses.replace(model.text.spec, pooling=pooling)
    model.spec = dataclasses.replace(model.spec, text=model.text.spec)
    return Encoder(model, encoder.preprocessing, encoder.tokenizer, encoder.provenance, encoder.name, encoder.mesh)


def main() -> None:
    """Prints one JSON line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model directory, Hugging Face folder, or hub name")
    parser.add_argument("--annotations", required=True, help="folder of the published files")
    parser.add_argument("--pooling", choices=("mean", "cls"), help="of a BERT tower, instead of its own")
    parser.add_argument("--method", choices=METHODS, default="remove")
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="score every N-th pair of images only")
    arguments = parser.parse_args()
    keep_compiled_programs()
    every = comparable_captions(read_annotation_folder(arguments.annotations))
    rules = candidate_rules(every)
    captions = [each for each in every if each.image // 2 % arguments.one_in == 0]
    encoder = load_model(arguments.model)
    if arguments.pooling:
        encoder = with_pooling(encoder, arguments.pooling)
    wanted = [sorted({i for rule in rules.values() for i in rule(each)}) for each in captions]
    with progress("influence", len(captions), "captions") as advance:
        texts = [each.caption for each in captions]
        influence = list(
            word_influence(
                encoder, texts, method=arguments.method, wanted=wanted, advance=advance, captions_at_once=4096
            )
        )
    setting = {"model": encoder.name, "pooling": encoder.spec.text.pooling, "method": arguments.method}
    print(json.dumps({**setting, "comparable": len(every), "scored": len(captions)}))
    for name, rule in rules.items():
        figures = agreement(captions, influence, rule)
        print(json.dumps({"candidates are": name, **{key: round(value, 2) for key, value in figures.items()}}))


if __name__ == "__main__":
    main()
