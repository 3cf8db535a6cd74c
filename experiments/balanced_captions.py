"""What scorers without the image get on balanced captions: n-gram models, length, and a trained classifier.

    python experiments/balanced_captions.py --reference coco/captions_train.json --captions coco/captions_test.json \
        --out out/balanced [--variants rand_voca] [--trained-on 1000] [--apart]

For each variant the captions of --captions are altered and balanced against --reference. The n-gram
models and the length are those of `rococo baselines`. The classifier is a logistic regression on words and word pairs,
fitted on originals and altered captions of --trained-on images of --reference, whose images are others. With --apart
these are left out of the reference, so that the generator is fitted to neither side. Prints a table; annotations and
figures, with intervals over images, are in --out, and what is there is not made again.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from rococo_jax.benchmarks.baselines import TextPairs, figure, prefers, read_text_pairs, text_baselines
from rococo_jax.benchmarks.rococo.generate import balance_captions, write_altered
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.perturb.text.balance import balanced_alterer
from rococo_jax.perturb.text.lexicon import open_lexicon
from rococo_jax.perturb.text.ngrams import words_of
from rococo_jax.perturb.text.word_exchange import ReferenceCaptions
from rococo_jax.storage import read_json, write_json

VARIANTS = ("same_concept", "diff_concept", "rand_voca")
_CHOSEN_BY = (0.03, 0.1, 0.3, 1.0)


def pairs_of(images: list[CaptionedImage], alterer, path: Path, seed: int) -> TextPairs:
    """The altered captions and their originals, from a file that is made where it is not there."""
    if not path.is_file():
        write_altered(path, balance_captions(images, alterer), {"balanced": True, "seed": seed})
    return read_text_pairs(path)


def classifier(pairs: TextPairs):
    """A regression that tells altered texts, its strength chosen by pairs of one fifth of the images."""
    right, wrong = ([pairs.texts[index] for index in side] for side in (pairs.right, pairs.wrong))
    held = pairs.image % 5 == 0

    def fitted(strength: float, chosen: np.ndarray):
        places = np.flatnonzero(chosen)
        texts = [side[place] for side in (right, wrong) for place in places]
        words = CountVectorizer(ngram_range=(1, 2), analyzer="word", tokenizer=words_of, token_pattern=None, min_df=2)
        model = make_pipeline(words, LogisticRegression(C=strength, max_iter=1000))
        return model.fit(texts, np.repeat([1, 0], len(places)))

    def preferred(strength: float) -> float:
        model = fitted(strength, ~held)
        scores = [model.decision_function([side[place] for place in np.flatnonzero(held)]) for side in (right, wrong)]
        return prefers(*scores).mean()

    return fitted(max(_CHOSEN_BY, key=preferred), np.ones(len(held), bool))


def figures_of(pairs: TextPairs, training: TextPairs, reference: tuple[str, ...]) -> dict[str, dict]:
    """Preference of every scorer for the original, and the classifier's accuracy, with intervals over images."""
    found = {
        name: figure([prefer(pairs.right, pairs.wrong)], [pairs.image])
        for name, prefer in text_baselines(pairs.texts, reference).items()
    }
    score = classifier(training).decision_function(list(pairs.texts))
    found["word_ngrams"] = figure([prefers(score[pairs.right], score[pairs.wrong])], [pairs.image])
    right = ((score[pairs.right] > 0) * 1.0 + (score[pairs.wrong] <= 0)) / 2
    found["word_ngrams_accuracy"] = figure([right], [pairs.image])
    return found


def main() -> None:
    """Makes the sets, counts, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True, help="captions that say what is usual, and train the classifier")
    parser.add_argument("--captions", required=True, help="captions of other images, which are altered")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--trained-on", type=int, default=1000, metavar="N", help="images that train the classifier")
    parser.add_argument("--apart", action="store_true", help="leave these images out of the reference")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    images, training = read_captions(arguments.captions), read_captions(arguments.reference)
    taught = training[: arguments.trained_on]
    training = training[arguments.trained_on :] if arguments.apart else training
    reference = ReferenceCaptions(training, open_lexicon(""))
    texts = tuple(caption for image in training for caption in image.captions)
    total = sum(len(image.captions) for image in images)
    print("| variant | altered | n-gram | trigram | shorter | word n-grams | pairs |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for variant in arguments.variants.split(","):
        place = arguments.out / variant
        written = place.with_suffix(".figures.json")
        if not written.is_file():
            alterer = balanced_alterer(variant, reference, arguments.seed)
            own = pairs_of(images, alterer, place.with_suffix(".json"), arguments.seed)
            teaching = pairs_of(taught, alterer, place.with_suffix(".training.json"), arguments.seed)
            write_json(written, figures_of(own, teaching, texts))
        found = read_json(written, "figures")
        cells = [
            f"{found[name]['preference']:.1f} ({found[name]['interval'][0]:.1f}-{found[name]['interval'][1]:.1f})"
            for name in ("bigram", "trigram", "shorter", "word_ngrams_accuracy", "word_ngrams")
        ]
        altered = f"{found['bigram']['pairs']:,} of {total:,}"
        print(f"| {variant} | {altered} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
