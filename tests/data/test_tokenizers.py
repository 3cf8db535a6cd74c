"""Token ids are those of the reference tokenizers, for each family and every kind of file it comes in."""

import dataclasses
import json
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, CLIPTokenizer, Siglip2Tokenizer, SiglipTokenizer

from rococo_jax.checkpoints.parameters import check_tokenizer
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from tests.support.refusals import refused
from tests.support.tiny import tiny_spec

CLIP = {"model_type": "clip", "text_config": {"max_position_embeddings": 77}}
SIGLIP = {"model_type": "siglip", "text_config": {"max_position_embeddings": 64}}
BERT = {"model_type": "bert", "max_position_embeddings": 512}

ODD_TEXTS = [
    "",
    "   ",
    " leading and trailing ",
    "two  spaces\tand a tab\nand a line",
    "!! bang",
    "'''",
    "A. B. C.",
    "don't, they'll, it's",
    "two dogs, 3 cats & 1,000 birds.",
    "ein schönes Café, naïve façade",
    "a\u0301 combining accent",
    "ﬁne ① Ⅳ ｆｕｌｌ　ｗｉｄｔｈ",
    "两只猫在沙发上",
    "猫 and dog",
    "😀 smile 👨‍👩‍👧",
    "İstanbul ΟΔΟΣ straße SS",
    "fish &amp; chips &lt;b&gt; &amp;amp;",
    "schÃ¶n mojibake",
    "\u00a0no-break\u3000ideographic\u200bzero",
    "▁ a word mark",
    "…ellipsis — dash",
    "a" * 700,
    "many words " * 150,
    "one two three four five. " * 60,
]


def sentences(count: int) -> list[str]:
    """Captions of invented words, enough of them for a tokenizer to be trained on."""
    generator = random.Random(7)
    syllables = [first + vowel + last for first in "bcdfghklmnprstvw" for vowel in "aeiou" for last in ("", "n", "st")]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 3))) for _ in range(250)]
    captions = (generator.choices(["a", "the", "on", "with", *words], k=generator.randint(4, 14)) for _ in range(count))
    return [" ".join(caption).capitalize() + generator.choice([".", " .", "", "!"]) for caption in captions]


def assert_equal_to_reference(ours: Tokenizer, reference, texts: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the sentencepiece reference remarks on end tokens
        expected = reference(texts, truncation=True, max_length=ours.spec.context_length)["input_ids"]
    different = [text for text, a, b in zip(texts, ours.encode(texts), expected, strict=True) if a != list(b)]
    assert not different, f"{len(different)} texts, such as {different[:3]}"
    assert ours.spec.pad_id == reference.pad_token_id
    assert ours.spec.eos_id in (reference.eos_token_id, reference.sep_token_id)


@pytest.fixture(scope="session")
def real_captions(real_data) -> list[str]:
    items = json.loads((real_data / "rococo/annotations/coco_karpathy_test.json").read_text())
    captions = [caption for item in items for caption in item["caption"]]
    assert len(captions) == 25_010
    return captions


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory) -> Path:
    """A byte-level BPE with word ends, in the two files that CLIP was first published in."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator((word.lower() for text in sentences(800) for word in text.split()), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for token in (*(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"):
        vocabulary.setdefault(token, len(vocabulary))
    folder = tmp_path_factory.mktemp("clip")
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n")
    return folder


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    """A WordPiece vocabulary, one token a line."""
    words = sorted({word.lower().strip(".") for text in sentences(800) for word in text.split()} - {""})
    letters = [chr(code) for code in range(33, 127)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*letters, *("##" + letter for letter in letters), "猫", "##s", "##ing", "é", "##é"]
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = dict.fromkeys([*special, *pieces, *words])
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session", params=["nmt_nfkc", "identity"])
def siglip_folder(request, tmp_path_factory) -> Path:
    """A unigram sentencepiece model laid out as SigLIP's: pad 0 unused, `</s>` 1, `<unk>` 2, no start token."""
    folder = tmp_path_factory.mktemp("siglip")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower().strip(" .") for text in sentences(800)]),
        model_prefix=str(folder / "spiece"),
        vocab_size=240,
        model_type="unigram",
        normalization_rule_name=request.param,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "spiece.vocab").unlink()
    return folder


def test_clip_ids_from_vocabulary_and_merges_equal_the_reference(clip_folder):
    assert_equal_to_reference(
        read_huggingface_tokenizer(clip_folder, CLIP),
        CLIPTokenizer.from_pretrained(str(clip_folder)),
        sentences(300) + ODD_TEXTS,
    )


def test_clip_ids_from_tokenizer_json_equal_the_reference(clip_folder, tmp_path):
    reference = CLIPTokenizer.from_pretrained(str(clip_folder), pad_token="!")
    reference.save_pretrained(tmp_path)
    assert not (tmp_path / "vocab.json").exists()
    ours = read_huggingface_tokenizer(tmp_path, CLIP)
    assert ours.spec.pad_id != ours.spec.eos_id
    assert_equal_to_reference(ours, reference, sentences(300) + ODD_TEXTS)


def test_bert_ids_from_a_vocabulary_equal_the_reference(bert_folder):
    reference = BertTokenizer.from_pretrained(str(bert_folder))
    assert_equal_to_reference(read_huggingface_tokenizer(bert_folder, BERT), reference, sentences(300) + ODD_TEXTS)


def test_siglip_ids_from_sentencepiece_equal_the_reference(siglip_folder):
    ours = read_huggingface_tokenizer(siglip_folder, SIGLIP)
    reference = SiglipTokenizer(vocab_file=str(siglip_folder / "spiece.model"))
    assert_equal_to_reference(ours, reference, sentences(300) + ODD_TEXTS)
    assert ours.spec.fixed_length == ours.spec.context_length == 64 and ours.spec.cleaning == "siglip"


def test_siglip_2_reads_lower_cased_text_with_its_punctuation(tmp_path):
    letters = [chr(code) for code in range(33, 127)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: number for number, token in enumerate([*special, "▁", *letters, "▁d", "og", "▁dog"])}
    reference = Siglip2Tokenizer(
        vocab=vocabulary, merges=[("▁", "d"), ("o", "g"), ("▁d", "og")], add_eos_token=True, padding_side="right"
    )
    reference.save_pretrained(tmp_path)
    ours = read_huggingface_tokenizer(tmp_path, SIGLIP)
    assert ours.spec.cleaning == "lowercase" and ours.spec.eos_id == 1 and ours.spec.pad_id == 0
    assert_equal_to_reference(ours, reference, [*sentences(50), *ODD_TEXTS])


@pytest.mark.real_data
def test_ids_of_the_real_bert_tower_equal_the_reference_on_every_coco_caption(real_data, real_captions):
    folder = real_data / "towers/minilm_l6_v2"
    ours = read_huggingface_tokenizer(folder, json.loads((folder / "config.json").read_text()))
    assert ours.spec.context_length == 256
    assert_equal_to_reference(ours, AutoTokenizer.from_pretrained(folder), real_captions + ODD_TEXTS)


@pytest.mark.real_data
def test_ids_of_a_clip_vocabulary_equal_the_reference_on_every_coco_caption(clip_folder, real_captions):
    reference = CLIPTokenizer.from_pretrained(str(clip_folder))
    assert_equal_to_reference(read_huggingface_tokenizer(clip_folder, CLIP), reference, real_captions)


@pytest.mark.real_data
def test_ids_of_a_siglip_vocabulary_equal_the_reference_on_coco_captions(siglip_folder, real_captions):
    reference = SiglipTokenizer(vocab_file=str(siglip_folder / "spiece.model"))
    # Every eighth: the reference is written in Python and takes long.
    assert_equal_to_reference(read_huggingface_tokenizer(siglip_folder, SIGLIP), reference, real_captions[::8])


@pytest.fixture(params=["clip", "bert", "siglip"])
def any_tokenizer(request, clip_folder, bert_folder, siglip_folder) -> Tokenizer:
    folder, config = {"clip": (clip_folder, CLIP), "bert": (bert_folder, BERT), "siglip": (siglip_folder, SIGLIP)}[
        request.param
    ]
    return read_huggingface_tokenizer(folder, config)


def test_a_text_that_is_too_long_is_cut_and_keeps_its_end_token(any_tokenizer):
    spec = any_tokenizer.spec
    (ids,) = any_tokenizer.encode(["a red dog sits near the cat " * 100])
    assert len(ids) == spec.context_length and ids[-1] == spec.eos_id


def test_an_empty_text_still_has_its_end_token(any_tokenizer):
    (ids,) = any_tokenizer.encode([""])
    assert ids[-1] == any_tokenizer.spec.eos_id and len(ids) <= 2


def test_blanks_at_the_end_of_a_text_change_no_ids(any_tokenizer):
    texts = sentences(40)
    assert any_tokenizer.encode([f"{text} \n" for text in texts]) == any_tokenizer.encode(texts)


def test_no_texts_are_no_ids(any_tokenizer):
    assert any_tokenizer.encode([]) == []
    ids, mask = any_tokenizer.pad([])
    assert len(ids) == len(mask) == 0


def test_ids_do_not_depend_on_the_company(any_tokenizer, monkeypatch):
    texts = sentences(40) + ODD_TEXTS
    together = any_tokenizer.encode(texts)
    monkeypatch.setattr("rococo_jax.data.tokenizers._TEXTS_AT_ONCE", 7)
    assert any_tokenizer.encode(texts) == together
    assert any_tokenizer.encode(texts[::-1]) == together[::-1]
    assert [any_tokenizer.encode([text])[0] for text in texts] == together


def test_a_saved_tokenizer_gives_the_same_ids(any_tokenizer, tmp_path):
    any_tokenizer.save(tmp_path / "tokenizer.json")
    spec = TokenizerSpec.from_json(json.loads(json.dumps(any_tokenizer.spec.to_json())))
    again = Tokenizer.load(tmp_path / "tokenizer.json", spec)
    assert again.spec == any_tokenizer.spec and again.hash() == any_tokenizer.hash()
    assert again.encode(sentences(20) + ODD_TEXTS) == any_tokenizer.encode(sentences(20) + ODD_TEXTS)


def test_padding_fills_with_the_pad_id_and_the_mask_says_where(clip_folder):
    tokenizer = read_huggingface_tokenizer(clip_folder, CLIP)
    rows = [[5, 6, 7], [8], []]
    ids, mask = tokenizer.pad(rows, 4)
    assert ids.dtype == np.int32 and mask.dtype == np.bool_
    pad = tokenizer.spec.pad_id
    assert ids.tolist() == [[5, 6, 7, pad], [8, pad, pad, pad], [pad] * 4]
    assert mask.tolist() == [[True, True, True, False], [True, False, False, False], [False] * 4]
    assert tokenizer.pad(rows)[0].shape == (3, 3)
    with pytest.raises(ValueError, match="3 tokens does not fit into 2"):
        tokenizer.pad(rows, 2)


def test_siglip_texts_are_always_padded_to_64_and_wholly_read(siglip_folder):
    tokenizer = read_huggingface_tokenizer(siglip_folder, SIGLIP)
    ids, mask = tokenizer.pad(tokenizer.encode(["a dog", "a red cat"]), 16)
    reference = SiglipTokenizer(vocab_file=str(siglip_folder / "spiece.model"))
    expected = reference(["a dog", "a red cat"], padding="max_length", max_length=64)["input_ids"]
    assert ids.tolist() == expected and mask.shape == (2, 64) and mask.all()


def test_padding_settings_inside_tokenizer_json_are_not_used(bert_folder, tmp_path):
    tokenizer = read_huggingface_tokenizer(bert_folder, BERT)
    expected = tokenizer.encode(["a dog"])
    tokenizer.rust.enable_padding(length=30)
    tokenizer.rust.enable_truncation(3)
    tokenizer.rust.save(str(tmp_path / "tokenizer.json"))
    assert read_huggingface_tokenizer(tmp_path, BERT).encode(["a dog"]) == expected


@pytest.mark.parametrize("files", [{}, {"vocab.json": "{}"}, {"tokenizer.json": "{"}, {"tokenizer.json": "{}"}])
@pytest.mark.parametrize("config", [CLIP, SIGLIP, BERT])
def test_a_folder_without_a_whole_tokenizer_is_named(files, config, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refused("tokenizer", read_huggingface_tokenizer, tmp_path, config)


def test_damaged_vocabulary_files_are_named(clip_folder, tmp_path):
    shutil.copytree(clip_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nnot in the vocabulary\n")
    refused("vocabulary files", read_huggingface_tokenizer, tmp_path, CLIP)
    (tmp_path / "spiece.model").write_bytes(b"no sentencepiece model")
    refused(r"spiece\.model: sentencepiece model", read_huggingface_tokenizer, tmp_path, SIGLIP)


def test_an_unknown_family_and_an_unreachable_name_are_refused(tmp_path):
    refused("model_type: found gpt2", read_huggingface_tokenizer, tmp_path, {"model_type": "gpt2"})
    refused("no-such/model: tokenizer", read_huggingface_tokenizer, "no-such/model", CLIP)


def test_a_special_token_outside_the_vocabulary_is_refused(bert_folder, tmp_path):
    shutil.copytree(bert_folder, tmp_path, dirs_exist_ok=True)
    read_huggingface_tokenizer(bert_folder, BERT).save(tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<blank>"}))
    # `transformers` adds it after the words, where the tower has no vector.
    tokenizer = read_huggingface_tokenizer(tmp_path, BERT)
    size = tokenizer.rust.get_vocab_size() - 1
    text = dataclasses.replace(tiny_spec(attention="masked").text, vocabulary_size=size)
    refused("'<blank>'", check_tokenizer, tokenizer, ModelSpec(vision=None, text=text), tmp_path)


def test_a_spec_with_missing_or_unknown_keys_is_refused():
    refused(r"model\.json: tokenizer", TokenizerSpec.from_json, {"family": "clip"}, "model.json")
    whole = TokenizerSpec(family="clip", cleaning="none", context_length=77, pad_id=0, eos_id=1).to_json()
    for key, value in (("context_length", 0), ("pad_id", -1), ("eos_id", "2"), ("fixed_length", 0)):
        with pytest.raises(InputError, match=rf"tokenizer\.{key}: found {value!r}; wanted a whole number"):
            TokenizerSpec.from_json({**whole, key: value})
    refused("cleaning: found polish", TokenizerSpec, "clip", "polish", 77, 0, 1)
