"""Time the influence of every word with a CLIP B/32-sized text tower: shared prefixes, our encoder, the plain loop.

    python perf/influence.py --captions coco_karpathy_test.json [--count 2000] [--parts 2] [--cores 2]

Three ways compute the same scores, which must agree within 1e-4:

    shared      `word_influence`: common prefixes of captions and shortened captions are computed once
    separate    our encoder: `encode_text` on the captions and on every shortened caption, in length buckets
    plain loop  the reference library on the same texts, padded to 77 tokens, in batches, one thread per core

Random weights, and a synthetic tokenizer with one token per word or punctuation mark, as CLIP's mostly has.
"""

import time
from collections.abc import Callable

import measuring
import numpy as np
from towers import CONTEXT, END, START, encode_with_reference, make_reference, read_captions


def main() -> None:
    """Print seconds, ratios and the largest difference as JSON."""
    parser = measuring.options(__doc__, cores=True)
    parser.add_argument("--captions", required=True, help="captions file in Karpathy form")
    parser.add_argument("--count", type=int, default=2000, help="captions, spread over the file")
    parser.add_argument("--reference-count", type=int, default=32, help="how many of these the plain loop computes")
    parser.add_argument("--batch", type=int, default=32, help="batch size of the plain loop")
    parser.add_argument("--parts", type=int, default=2, help="parts of the captions; the ways take turns")
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    captions = read_captions(arguments.captions, arguments.count)
    some = captions[:: max(1, len(captions) // arguments.reference_count)]
    theirs = make_reference(arguments.cores)
    ours = measuring.converted(theirs)
    ours.tokenizer = word_level_tokenizer(captions)
    ways: dict[str, tuple[Callable, list[str]]] = {
        "shared": (lambda texts: shared(ours, texts), captions),
        "separate": (lambda texts: by_texts(ours.encode_text, texts), captions),
        "plain loop": (lambda texts: by_texts(lambda t: reference(theirs, ours, t, arguments.batch), texts), some),
    }
    for way in ("shared", "separate"):
        ways[way][0]([*captions[::16], max(captions, key=len)])  # compiles all lengths
    seconds, processor, scores = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0), {name: {} for name in ways}
    for part in range(arguments.parts):
        for name, (way, texts) in ways.items():
            some = texts[part :: arguments.parts]
            start, start_of_processor = time.perf_counter(), time.process_time()
            scores[name] |= zip(some, way(some), strict=True)
            seconds[name] += (time.perf_counter() - start) / len(texts)
            processor[name] += (time.process_time() - start_of_processor) / len(texts)
    difference = max(
        float(np.abs(scores["shared"][text] - values).max(initial=0))
        for name in ("separate", "plain loop")
        for text, values in scores[name].items()
    )
    if not difference < 1e-4:
        raise SystemExit(f"scores: found a difference of {difference}; wanted less than 1e-4")
    words = float(np.mean([len(values) for values in scores["shared"].values()]))
    measuring.print_report(
        {
            "captions": len(captions),
            "tokens": count_tokens(ours, captions),
            "words_per_caption": round(words, 2),
            "milliseconds_per_caption": {name: round(1000 * value, 2) for name, value in seconds.items()},
            "processor_milliseconds_per_caption": {name: round(1000 * each, 2) for name, each in processor.items()},
            "times_the_plain_loop": round(seconds["plain loop"] / seconds["shared"], 2),
            "times_our_encoder": round(seconds["separate"] / seconds["shared"], 2),
            "times_our_encoder_in_processor_time": round(processor["separate"] / processor["shared"], 2),
            "largest_difference": difference,
            "peak_memory_mib": measuring.peak_memory() // 2**20,
        }
    )


def count_tokens(encoder, captions: list[str]) -> dict[str, int]:
    """Return the tokens of each way: in prefix trees, in unpadded texts, in padded lengths, padded to the context."""
    from rococo_jax.encoders.programs import bucket_length
    from rococo_jax.perturb.text.influence import without_word
    from rococo_jax.perturb.text.shared_prefix import build_prefix_trees
    from rococo_jax.perturb.text.words import split_words

    texts = [[caption, *(without_word(caption, word) for word in split_words(caption))] for caption in captions]
    ids = encoder.tokenizer.encode([text for group in texts for text in group])
    return {
        "in trees": sum(len(tree.ids) for tree in build_prefix_trees(ids, 1024, CONTEXT)),
        "in texts": sum(map(len, ids)),
        "in buckets": sum(bucket_length(len(row), CONTEXT) for row in ids),
        "padded to 77": CONTEXT * len(ids),
    }


def word_level_tokenizer(captions: list[str]):
    """Return a tokenizer with one token for each word or punctuation mark of the captions."""
    import tokenizers

    from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec

    split = tokenizers.pre_tokenizers.BertPreTokenizer()
    words = sorted({word for caption in captions for word, _ in split.pre_tokenize_str(caption.lower())})
    vocabulary = {"<start>": START, "<end>": END, "<unknown>": 0, **{word: 1 + i for i, word in enumerate(words)}}
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unknown>"))
    rust.normalizer, rust.pre_tokenizer = tokenizers.normalizers.Lowercase(), split
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", START), ("<end>", END)]
    )
    return Tokenizer(rust, TokenizerSpec("clip", "none", context_length=CONTEXT, pad_id=END, eos_id=END))


def shared(encoder, captions: list[str]) -> list[np.ndarray]:
    """Return the output of `word_influence`."""
    from rococo_jax.perturb.text.influence import word_influence

    return list(word_influence(encoder, captions))


def by_texts(encode: Callable[[list[str]], np.ndarray], captions: list[str]) -> list[np.ndarray]:
    """Compute influences by their definition: encode every caption and every shortened caption separately."""
    from rococo_jax.perturb.text.influence import without_word
    from rococo_jax.perturb.text.words import split_words

    groups = [[caption, *(without_word(caption, word) for word in split_words(caption))] for caption in captions]
    vectors = encode([text for group in groups for text in group])
    parts = np.split(vectors, np.cumsum([len(group) for group in groups])[:-1])
    return [1 - part[1:] @ part[0] for part in parts]


def reference(model, encoder, texts: list[str], batch: int) -> np.ndarray:
    """Encode padded texts with the reference library."""
    return encode_with_reference(model, encoder.tokenizer.encode(texts), batch)


if __name__ == "__main__":
    main()
