"""Count how often the word of lowest influence is the word that the published RoCOCO captions replace.

    python experiments/influence_agreement.py MODEL --annotations DIR [--method mask] [--one-in 4]

In some 21,900 captions all four published variants replace the same word. Each caption's candidates are ranked by
influence; the figure is the share of captions where the published word has the lowest or the highest influence, or is
picked by chance (random). Rules for the candidates:

    all source words         every word that the benchmark replaces somewhere; uses the captions it is scored on
    shipped lexicon          nouns of the shipped lexicon, which reads no benchmark file
    replaced in r % or more  words that the benchmark replaces in at least r % of their occurrences, counted on the
                             other half of the images (odd numbers for even ones and vice versa); the word of the
                             highest share where no word of a caption is left

Under the last two rules the candidates of a caption do not depend on any caption of its own image. r was explored on
images of even number and tried on one in sixteen pairs of images; `odd, not seen` are the other images of odd number,
on which no choice was made.

MODEL's text tower must be a BERT. The influence is computed with the poolings `cls` and `mean`, and with the model's
own and its head if it has one (`model`).
"""

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rococo_jax.benchmarks.rococo.annotations import AnnotationSet, read_annotation_folder
from rococo_jax.benchmarks.rococo.caption_diff import common_change
from rococo_jax.checkpoints.parameters import build_model, parameters_of
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.words import plain, split_words
from rococo_jax.progress import progress
from rococo_jax.runtime import enable_compilation_cache

SHARES = (0.02, 0.05, 0.1, 0.15, 0.2)
# Prior shares for words seen fewer than three times on the other half: nouns of the lexicon, and other words.
FEW, SHARE_OF_NOUNS, SHARE_OF_OTHERS = 3, 0.1, 0.02


class Comparable(NamedTuple):
    """A caption whose published variants all replace the word `replaced`; `image` is its image's number."""

    image: int
    caption: str
    words: tuple[str, ...]
    replaced: int


def comparable_captions(annotations: AnnotationSet) -> list[Comparable]:
    """The captions in which all variants replace the same word."""
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
    """For even and for odd images: word -> share of its occurrences that are replaced on the other half."""
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
    """Name -> rule that gives the candidates of a caption."""
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
    """Half the 95 % bootstrap interval over images; captions of one image are not independent."""
    _, image = np.unique(images, return_inverse=True)
    sums, counts = np.bincount(image, hits), np.bincount(image)
    chosen = np.random.default_rng(0).integers(0, len(sums), (draws, len(sums)))
    low, high = np.percentile(100 * sums[chosen].sum(1) / counts[chosen].sum(1), [2.5, 97.5])
    return float(high - low) / 2


def with_pooling(encoder: Encoder, pooling: str) -> Encoder:
    """The text tower alone, pooled in one way, without a head."""
    text = dataclasses.replace(encoder.spec.text, pooling=pooling)
    tower = {path: array for path, array in parameters_of(encoder.model).items() if path.startswith("text.")}
    model = build_model(ModelSpec(vision=None, text=text), tower)
    return Encoder(model, None, encoder.tokenizer, encoder.provenance, encoder.name, encoder.mesh)


def parts(captions: Sequence[Comparable]) -> dict[str, list[int]]:
    """Name -> captions that are scored together."""
    numbers = range(len(captions))
    odd = [i for i in numbers if captions[i].image % 2]
    return {
        "all": list(numbers),
        "even": [i for i in numbers if not captions[i].image % 2],
        "odd": odd,
        "odd, not seen": [i for i in odd if captions[i].image // 2 % 16],
    }


def main() -> None:
    """Print one JSON line per pooling, rule and part of the captions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model directory, Hugging Face folder, or hub name")
    parser.add_argument("--annotations", required=True, help="folder of the published files")
    parser.add_argument("--method", choices=("remove", "mask"), default="remove")
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="score every N-th pair of images only")
    arguments = parser.parse_args()
    enable_compilation_cache()
    every = comparable_captions(read_annotation_folder(arguments.annotations))
    rules = candidate_rules(every)
    captions = [each for each in every if each.image // 2 % arguments.one_in == 0]
    encoder = load_model(arguments.model)
    if encoder.spec.text is None or encoder.spec.text.attention != "masked":
        raise InputError(arguments.model, "text tower", "none, or no BERT", "a BERT tower")
    wanted = [sorted({i for rule in rules.values() for i in rule(each)}) for each in captions]
    print(json.dumps({"model": encoder.name, "method": arguments.method, "comparable": len(every)}))
    encoders = {pooling: with_pooling(encoder, pooling) for pooling in ("cls", "mean")}
    encoders |= {} if encoder.spec.text_head.kind == "none" else {"model": encoder}
    texts, found = [each.caption for each in captions], {}
    with progress("influence", len(encoders) * len(texts), "captions") as advance:
        for pooling, each in encoders.items():
            choices = {"method": arguments.method, "wanted": wanted, "on_progress": advance}
            found[pooling] = list(word_influence(each, texts, **choices))
    for name, members in parts(captions).items():
        for pooling, influence in found.items():
            for rule_name, rule in rules.items():
                figures = agreement([captions[i] for i in members], [influence[i] for i in members], rule)
                line = {"captions": name, "count": len(members), "pooling": pooling, "candidates are": rule_name}
                print(json.dumps(line | {key: round(value, 2) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
