"""Baselines without the image: scorers that choose between an original and an altered text from texts alone.

    bigram, trigram   higher log probability under an n-gram model of training captions (`perturb.text.ngrams`)
    shorter           fewer words
    bag_of_words      the best that any model without word order can reach: pairs of equal bags are ties

Preference in percent, ties count one half, as in `metrics.grounding`. Training captions that a benchmark has among its
own texts, word for word, are left out, so that no baseline has read the answers.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.benchmark import recognise
from rococo_jax.benchmarks.rococo.annotations import altered_pairs, read_annotation_folder
from rococo_jax.errors import InputError
from rococo_jax.metrics.intervals import Counted, intervals
from rococo_jax.metrics.metric import Metric, share
from rococo_jax.perturb.text.ngrams import NgramModel, words_of

PREFERENCE = "preference"
_METRICS = (
    Metric(PREFERENCE, "Preference", "higher", "%", "the original is preferred; ties count one half", "ours",
           share(PREFERENCE)),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A scorer of texts.

    Attributes:
        name: in results.
        label: how tables print it.
        definition: one phrase.
    """

    name: str
    label: str
    definition: str


BASELINES = {
    each.name: each
    for each in (
        Baseline("bigram", "Bigrams", "the more probable text under a bigram model of training captions"),
        Baseline("trigram", "Trigrams", "the more probable text under a trigram model of training captions"),
        Baseline("shorter", "Shorter wins", "the text with fewer words"),
        Baseline("bag_of_words", "Bag of words, at most", "the best without word order: texts of the same words tie"),
    )
}  # fmt: skip
_ORDERS = ("bigram", "trigram")

# (right, wrong) rows of a table of texts -> 1 where the right one is preferred, one half for a tie, else 0.
Preference = Callable[[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]], Float[np.ndarray, " pairs"]]


@functools.lru_cache(maxsize=4)
def text_baselines(texts: tuple[str, ...], training_captions: tuple[str, ...] | None = None) -> dict[str, Preference]:
    """The baselines of a table of texts, by name. Those of the last tables are kept, for further models.

    Args:
        texts: all texts that are compared.
        training_captions: for the n-gram models; without them, those are left out.
    """
    words = [words_of(text) for text in texts]
    preferences: dict[str, Preference] = {}
    if training_captions is not None:
        benchmark_texts = set(words)
        model = NgramModel([each for each in map(words_of, training_captions) if each not in benchmark_texts])
        scores = np.array([model.log_probability(each) for each in words])
        for column, name in enumerate(_ORDERS):
            preferences[name] = _higher(scores[:, column])
    preferences["shorter"] = _higher(-np.array([len(each) for each in words], float))
    bags: dict[tuple[str, ...], int] = {}
    bag = np.array([bags.setdefault(tuple(sorted(each)), len(bags)) for each in words], int)
    preferences["bag_of_words"] = lambda right, wrong: np.where(bag[right] == bag[wrong], 0.5, 1.0)
    return preferences


def _higher(score: Float[np.ndarray, " texts"]) -> Preference:
    return lambda right, wrong: prefers(score[right], score[wrong])


def prefers(right: Float[np.ndarray, " pairs"], wrong: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """1 where the right one scores higher, one half for a tie."""
    return ((right > wrong) + (right >= wrong).astype(float)) / 2


def figure(preference: Sequence[Float[np.ndarray, " _pairs"]], group: Sequence[Int[np.ndarray, " _pairs"]]) -> dict:
    """`{"preference": %, "interval": [low, high], "pairs": n}` of one baseline, the mean over runs (seeds or parts).

    Args:
        preference: of each run, pair by pair.
        group: of each run, the image of each pair, by which intervals resample.
    """
    runs = [
        Counted(each[:, None], (PREFERENCE,), of_run, _METRICS) for each, of_run in zip(preference, group, strict=True)
    ]
    value = float(np.mean([run.values()[PREFERENCE] for run in runs]))
    return {PREFERENCE: value, "interval": intervals(runs)[PREFERENCE], "pairs": sum(map(len, runs))}


@dataclasses.dataclass(frozen=True, eq=False)
class TextPairs:
    """Texts, and which are compared.

    Attributes:
        texts: each once.
        right, wrong: rows of `texts`, one a pair.
        image: number of the image of each pair.
    """

    texts: tuple[str, ...]
    right: Int[np.ndarray, " pairs"]
    wrong: Int[np.ndarray, " pairs"]
    image: Int[np.ndarray, " pairs"]


def read_text_pairs(folder: Path) -> dict[str, TextPairs]:
    """The pairs of each part of a benchmark's annotations: altered captions, and choices among texts of one image.

    Raises InputError: a file cannot be read, or there is no pair.
    """
    info, pairs = recognise(folder), {}
    if info.reader is None:
        pairs = {
            name: list(altered_pairs(each.items)) for name, each in read_annotation_folder(folder).variants.items()
        }
    else:
        for item in info.reader.read(folder, info.files)[0].items():
            right = [text for _, text in item.match]
            wrong = [text for text in range(len(item.texts)) if text not in right]
            if len(item.images) == 1 and wrong:
                sides = ((item.texts[one], item.texts[other]) for one in right for other in wrong)
                pairs.setdefault(item.part, []).extend((item.images[0].file, *each) for each in sides)
    if not any(pairs.values()):
        raise InputError(folder, "pairs", "none", "a right and a wrong text of one image, such as altered captions")
    return {part: _gather(of_part) for part, of_part in pairs.items() if of_part}


def _gather(pairs: Sequence[tuple[str, str, str]]) -> TextPairs:
    """The pairs (image, right, wrong) as rows of a table of texts."""
    rows: dict[str, int] = {}
    images: dict[str, int] = {}
    numbers = [
        (rows.setdefault(right, len(rows)), rows.setdefault(wrong, len(rows)), images.setdefault(image, len(images)))
        for image, right, wrong in pairs
    ]
    return TextPairs(tuple(rows), *np.array(numbers, int).T)
