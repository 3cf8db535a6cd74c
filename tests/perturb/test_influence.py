"""Influence: the words' tokens, sharing of prefixes, meshes, bounds, and the table on disk."""

import dataclasses
import json
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import nnx

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.siglip_tokenizer import SIGLIP_CLEANING
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.perturb.text.influence import WordTokenizer, without_word, word_influence
from rococo_jax.perturb.text.influence_table import read_influence_table, write_influence_table
from rococo_jax.perturb.text.shared_prefix import build_prefix_trees, can_share_prefix
from rococo_jax.perturb.text.words import split_words
from tests.support.refusals import refused
from tests.support.tiny import WORDS, tiny_encoder, tiny_spec, tiny_tokenizer

pytestmark = pytest.mark.quick  # the bits are in test_influence_processes.py

# Nothing, punctuation alone, one word, clitics and quotes, words of many tokens and of other scripts, and captions
# longer than the tower's 24 tokens.
CAPTIONS = [
    "",
    "...",
    "dog",
    'the man\'s T-shirt, &amp; "sit"!',
    "caf&eacute; 一只狗 👩🏽‍🚀 🏖️",
    "a red dog sits on the big blue house near a boat",
    " ".join(WORDS) + " " + " ".join(WORDS),
]


@pytest.fixture(scope="module")
def tiny():
    """A causal tower that no test changes."""
    return tiny_encoder()


@pytest.mark.parametrize(
    ("attention", "pooling", "suffix", "expected"),
    [
        ("causal", "first_eos", [1], True),
        ("causal", "highest_id", [1], True),
        ("causal", "first_eos", [1, 1], False),
        ("causal", "first_eos", [], False),
        ("causal", "last", [1], False),
        ("masked", "first_eos", [1], False),
    ],
)
def test_prefixes_are_shared_only_if_a_text_ends_with_its_pooled_token(attention, pooling, suffix, expected):
    spec = dataclasses.replace(tiny_spec().text, attention=attention, pooling=pooling)
    assert can_share_prefix(spec, [0], suffix) is expected


def plain_loop(encoder, captions: list[str]) -> list[np.ndarray]:
    """The definition, on the shortened strings, all padded to the context."""
    groups = [[caption, *(without_word(caption, word) for word in split_words(caption))] for caption in captions]
    ids = encoder.tokenizer.encode([text for group in groups for text in group])
    ids, mask = map(jnp.asarray, encoder.tokenizer.pad(ids, encoder.tokenizer.spec.context_length))
    vectors = nnx.jit(lambda model, ids, mask: model.text_embeddings(ids, mask))(encoder.model, ids, mask)
    parts = np.split(np.asarray(vectors, np.float64), np.cumsum([len(group) for group in groups])[:-1])
    return [1 - part[1:] @ part[0] for part in parts]


@pytest.fixture(scope="module", params=["causal", pytest.param("masked", marks=pytest.mark.thorough)])
def encoder(request, tiny):
    return tiny if request.param == "causal" else tiny_encoder(spec=tiny_spec(attention=request.param))


@pytest.fixture(scope="module")
def expected(encoder):
    return plain_loop(encoder, CAPTIONS)


@pytest.mark.parametrize("share_prefix", [True, False])
def test_influence_is_one_minus_the_cosine_to_the_caption_without_the_word(encoder, expected, share_prefix):
    for found, wanted in zip(word_influence(encoder, CAPTIONS, share_prefix=share_prefix), expected, strict=True):
        # Both sides are float32 towers of two layers; components of unit vectors differ by some 1e-7.
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_prefix_tree_contains_every_text_once_and_shares_common_beginnings():
    rng = np.random.default_rng(0)
    # Three different tokens, so that many texts begin alike; some are the same; some are longer than a step of depth.
    texts = [[*rng.integers(3, 6, rng.integers(0, 22)).tolist(), 1] for _ in range(300)]
    trees = list(build_prefix_trees(texts, 256, 24))
    assert sorted(text for tree in trees for text in tree.texts) == list(range(300))
    for tree in trees:
        place = np.arange(len(tree.ids))
        for text, end in zip(tree.texts, tree.ends, strict=False):
            ancestors = place[(place <= end) & (end < tree.stops)]
            assert tree.ids[ancestors].tolist() == texts[text]
            assert tree.positions[ancestors].tolist() == list(range(len(texts[text])))
            # What a run reads is itself and its path: nothing of a text is beyond it.
            run = end // 32
            above = ancestors[ancestors < 32 * run]
            assert set(above.tolist()) <= set(tree.paths[run].tolist())
    different = {tuple(text[: n + 1]) for text in texts for n in range(len(text))}
    used = sum(int((tree.stops[tree.ids > 0] > 0).sum()) for tree in trees)
    # Only the beginnings at a tree's head, and those that two depths share, are there more than once.
    assert len(different) <= used <= len(different) + 24 * len(trees) + 100


def test_words_that_were_not_requested_are_nan_and_the_others_are_unchanged(encoder, expected):
    wanted = [range(0, len(values), 2) for values in expected]
    for found, values in zip(word_influence(encoder, CAPTIONS, wanted=wanted), expected, strict=True):
        assert np.isnan(found[1::2]).all()
        np.testing.assert_allclose(found[::2], values[::2], atol=1e-6)  # float32, as above


def test_words_beyond_the_context_have_no_influence(encoder):
    caption = " ".join(["dog"] * 40)
    (influence,) = word_influence(encoder, [caption])
    # 24 tokens, two of them special: the caption reads the same whichever dog goes.
    np.testing.assert_allclose(influence, 0, atol=1e-6)
    assert (influence[22:] == 0).all()


def siglip_like() -> Tokenizer:
    """Return a tokenizer of words with sentencepiece's mark that removes punctuation first, as SigLIP's does."""
    pieces = sorted({f"▁{word}" for word in [*WORDS, "mans", "tshirt", "s", "shirt", "t"]})
    vocabulary = {token: index for index, token in enumerate(["<pad>", "</s>", "<unk>", *pieces])}
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    rust.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex("[ ▁]+$"), "")
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    rust.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    rust.normalizer = SIGLIP_CLEANING
    return Tokenizer(rust, TokenizerSpec("siglip", "none", 24, pad_id=1, eos_id=1, fixed_length=24))


@pytest.mark.parametrize("make", [tiny_tokenizer, siglip_like])
def test_removing_the_tokens_of_a_word_gives_the_tokens_of_the_shortened_caption(make):
    words = WordTokenizer(make())
    for caption, part in zip(CAPTIONS, words(CAPTIONS), strict=True):
        for index, word in enumerate(part.words):
            assert words.around(part.without(index)) == words.tokenizer.encode([without_word(caption, word)])[0]


def test_a_caption_is_tokenised_again_if_a_word_shares_tokens_with_its_neighbours():
    words = WordTokenizer(siglip_like())
    joined, apart = words(["the man's dog", "the man dog"])
    assert SIGLIP_CLEANING.normalize_str("man's") == "▁mans"
    assert joined.spans is None and apart.spans == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.slow
@pytest.mark.real_data
def test_real_captions_shortened_by_tokens_equal_the_shortened_strings(real_data):
    folder = real_data / "towers" / "minilm_l6_v2"
    words = WordTokenizer(read_huggingface_tokenizer(folder, json.loads((folder / "config.json").read_text())))
    images = json.loads((real_data / "coco" / "captions_test.json").read_text())
    captions = [caption for image in images[:30] for caption in image["caption"]]
    for caption, part in zip(captions, words(captions), strict=True):
        texts = [without_word(caption, word) for word in part.words]
        shorter = [[*words.prefix, *part.ids[:start], *part.ids[end:], *words.suffix] for start, end in part.spans]
        assert shorter == words.tokenizer.encode(texts)


IMAGES = [CaptionedImage(f"{n}.jpg", (caption, f"two {caption}")) for n, caption in enumerate(CAPTIONS[2:6])]


@pytest.fixture(scope="module")
def lines(tmp_path_factory, tiny) -> list[bytes]:
    """Return the influences of the captions of `IMAGES`."""
    path = tmp_path_factory.mktemp("table") / "whole.jsonl"
    write_influence_table(tiny, IMAGES, path, captions_at_once=2)
    return path.read_bytes().splitlines(keepends=True)


# Of the third line; and an end within the sixth.
DAMAGES = (b"\0" * 30, b'{"image": "2.jpg", "capt', b"[" * 10**5, b"[]", b'"\xff"', b'{"image": "2.jpg"}', b"1" * 5000)


@pytest.mark.parametrize("damage", [*DAMAGES, "influence", "image", None], ids=range(len(DAMAGES) + 3))
def test_an_interrupted_table_resumes_and_a_damaged_line_is_computed_again(damage, lines, tmp_path, tiny):
    path, partial = tmp_path / "table.jsonl", tmp_path / ".table.jsonl.partial"
    with pytest.raises(KeyboardInterrupt):
        write_influence_table(tiny, IMAGES, path, captions_at_once=2, on_progress=Mock(side_effect=KeyboardInterrupt))
    assert not path.exists()
    if damage is None:  # two parts of two lines, a line, and one cut short
        kept, content = 4, [*lines[:5], lines[5][:20]]
    else:
        if isinstance(damage, str):
            damage = json.dumps({**json.loads(lines[2]), damage: "9"}).encode()
        kept, content = 2, [*lines[:2], damage + b"\n", *lines[3:]]
    partial.write_bytes(b"".join(content))
    assert write_influence_table(tiny, IMAGES, path, captions_at_once=2) == kept
    assert path.read_bytes() == b"".join(lines)
    assert [each.name for each in tmp_path.iterdir()] == ["table.jsonl"]


def test_an_unfinished_table_of_another_model_is_discarded_and_a_broken_line_is_named(lines, tmp_path, tiny):
    path = tmp_path / "table.jsonl"
    (tmp_path / ".table.jsonl.partial").write_bytes(b"".join(lines[:2]))
    (tmp_path / ".table.jsonl.partial.json").write_text('{"fingerprint": "another"}')
    assert write_influence_table(tiny, IMAGES, path, captions_at_once=2) == 0
    table = read_influence_table(path)
    captions = [caption for image in IMAGES for caption in image.captions]
    for caption, values in zip(captions, word_influence(tiny, captions, captions_at_once=2), strict=True):
        np.testing.assert_allclose(table[caption], values, atol=1e-7)  # seven decimals are written
    path.write_text(path.read_text().splitlines()[0] + "\n{\n")
    refused("line 2", read_influence_table, path)


def test_memory_is_bounded_by_the_number_of_captions_at_once(tiny):
    asked = []

    def endless():
        while True:
            asked.append(None)
            yield "a red dog"

    influences = word_influence(tiny, endless(), captions_at_once=4)
    for _ in range(9):
        next(influences)
    assert len(asked) == 12
