"""Token ids are those of the reference tokenizers, for each family and every kind of file it comes in."""

import dataclasses
import html
import json
import random
import shutil
import warnings
from pathlib import Path

import ftfy
import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, CLIPTokenizer, Siglip2Tokenizer, SiglipTokenizer

from rococo_jax.checkpoints.parameters import check_tokenizer
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec, cleaner
from rococo_jax.models import ModelSpec
from tests.support.refusals import refused
from tests.support.tiny import tiny_spec

CLIP = {"model_type": "clip", "text_config": {"max_position_embeddings": 77}}
SIGLIP = {"model_type": "siglip", "text_config": {"max_position_embeddings": 64}}
BERT = {"model_type": "bert", "max_position_embeddings": 512}

LETTERS = [chr(code) for code in range(33, 127)]
ODD_TEXTS = [
    "", "   ", " leading and trailing ", "two  spaces\tand a tab\nand a line", "!! bang", "'''", "A. B. C.",
    "don't, they'll, it's", "two dogs, 3 cats & 1,000 birds.", "ein schönes Café, naïve façade",
    "a\u0301 combining accent", "ﬁne ① Ⅳ ｆｕｌｌ　ｗｉｄｔｈ", "两只猫在沙发上", "猫 and dog", "😀 smile 👨‍👩‍👧",
    "İstanbul ΟΔΟΣ straße SS", "fish &amp; chips &lt;b&gt; &amp;amp;", "schÃ¶n mojibake",
    "\u00a0no-break\u3000ideographic\u200bzero", "▁ a word mark", "…ellipsis — dash", "a" * 700, "many words " * 150,
    "one two three four five. " * 60,
]  # fmt: skip


def sentences(count: int) -> list[str]:
    """Return captions of invented words, enough to train a tokenizer."""
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
def folders(tmp_path_factory) -> dict[str, Path]:
    """Tokenizers in the files in which each family was first published, and CLIP's in `tokenizer.json` as well."""
    folders = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    texts = sentences(800)
    write_clip(folders["clip"], texts)
    CLIPTokenizer.from_pretrained(folders["clip"], pad_token="!").save_pretrained(folders["clip json"])
    write_bert(folders["bert"], texts)
    for rule in ("nmt_nfkc", "identity"):
        write_siglip(folders[f"siglip {rule}"], texts, rule)
    return folders


def write_clip(folder: Path, texts: list[str]) -> None:
    """A byte-level BPE with word ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator((word.lower() for text in texts for word in text.split()), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for token in (*(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"):
        vocabulary.setdefault(token, len(vocabulary))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n")


def write_bert(folder: Path, texts: list[str]) -> None:
    """A WordPiece vocabulary, one token a line."""
    words = sorted({word.lower().strip(".") for text in texts for word in text.split()} - {""})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*LETTERS, *("##" + letter for letter in LETTERS), "猫", "##s", "##ing", "é", "##é"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys([*special, *pieces, *words])) + "\n", encoding="utf-8")


def write_siglip(folder: Path, texts: list[str], rule: str) -> None:
    """A unigram sentencepiece model laid out as SigLIP's: pad 0 unused, `</s>` 1, `<unk>` 2, no start token."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower().strip(" .") for text in texts]), model_prefix=str(folder / "spiece"),
        vocab_size=240, model_type="unigram", normalization_rule_name=rule, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=2,
    )  # fmt: skip


def siglip_reference(folder: Path) -> SiglipTokenizer:
    return SiglipTokenizer(vocab_file=str(folder / "spiece.model"))


# Name -> the tower's settings, and what reads the reference.
FAMILIES = {
    "clip": (CLIP, CLIPTokenizer.from_pretrained),
    "clip json": (CLIP, CLIPTokenizer.from_pretrained),
    "bert": (BERT, BertTokenizer.from_pretrained),
    "siglip nmt_nfkc": (SIGLIP, siglip_reference),
    "siglip identity": (SIGLIP, siglip_reference),
}


@pytest.fixture
def read(folders):
    """Read a tokenizer by the name of its family."""
    return lambda name: read_huggingface_tokenizer(folders[name], FAMILIES[name][0])


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_equal_the_reference(name, read, folders):
    ours = read(name)
    assert_equal_to_reference(ours, FAMILIES[name][1](folders[name]), sentences(300) + ODD_TEXTS)
    if name == "clip json":
        assert not (folders[name] / "vocab.json").exists() and ours.spec.pad_id != ours.spec.eos_id
    if "siglip" in name:
        assert ours.spec.fixed_length == ours.spec.context_length == 64 and ours.spec.cleaning == "siglip"


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["tower", "clip", "siglip nmt_nfkc", "siglip identity"])
def test_ids_of_coco_captions_equal_the_reference(name, folders, real_data):
    items = json.loads((real_data / "rococo/annotations/coco_karpathy_test.json").read_text())
    captions = [caption for item in items for caption in item["caption"]]
    assert len(captions) == 25_010
    if name == "tower":
        folder, reference = real_data / "towers/minilm_l6_v2", AutoTokenizer.from_pretrained
        config = json.loads((folder / "config.json").read_text())
    else:
        folder, (config, reference) = folders[name], FAMILIES[name]
    # Every eighth for SigLIP: the reference is written in Python and takes long.
    texts = captions[:: 8 if "siglip" in name else 1] + ODD_TEXTS
    ours = read_huggingface_tokenizer(folder, config)
    assert name != "tower" or ours.spec.context_length == 256
    assert_equal_to_reference(ours, reference(folder), texts)


def test_siglip_2_reads_lower_cased_text_with_its_punctuation(tmp_path):
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: number for number, token in enumerate([*special, "▁", *LETTERS, "▁d", "og", "▁dog"])}
    reference = Siglip2Tokenizer(
        vocab=vocabulary, merges=[("▁", "d"), ("o", "g"), ("▁d", "og")], add_eos_token=True, padding_side="right"
    )
    reference.save_pretrained(tmp_path)
    ours = read_huggingface_tokenizer(tmp_path, SIGLIP)
    assert ours.spec.cleaning == "lowercase" and ours.spec.eos_id == 1 and ours.spec.pad_id == 0
    assert_equal_to_reference(ours, reference, [*sentences(50), *ODD_TEXTS])


@pytest.fixture(params=["clip", "bert", "siglip nmt_nfkc", "siglip identity"])
def any_tokenizer(request, read) -> Tokenizer:
    return read(request.param)


def test_texts_that_are_too_long_empty_or_end_in_blanks_keep_their_end_token(any_tokenizer):
    spec, texts = any_tokenizer.spec, sentences(40)
    long, empty = any_tokenizer.encode(["a red dog sits near the cat " * 100, ""])
    assert len(long) == spec.context_length and long[-1] == spec.eos_id
    assert empty[-1] == spec.eos_id and len(empty) <= 2
    assert any_tokenizer.encode([f"{text} \n" for text in texts]) == any_tokenizer.encode(texts)
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


def test_padding_fills_with_the_pad_id_and_the_mask_says_where(read):
    tokenizer = read("clip")
    rows = [[5, 6, 7], [8], []]
    ids, mask = tokenizer.pad(rows, 4)
    assert ids.dtype == np.int32 and mask.dtype == np.bool_
    pad = tokenizer.spec.pad_id
    assert ids.tolist() == [[5, 6, 7, pad], [8, pad, pad, pad], [pad] * 4]
    assert mask.tolist() == [[True, True, True, False], [True, False, False, False], [False] * 4]
    assert tokenizer.pad(rows)[0].shape == (3, 3)
    with pytest.raises(ValueError, match="3 tokens does not fit into 2"):
        tokenizer.pad(rows, 2)


@pytest.mark.parametrize("name", ["siglip nmt_nfkc", "siglip identity"])
def test_siglip_texts_are_always_padded_to_64_and_wholly_read(name, read, folders):
    tokenizer, texts = read(name), ["a dog", "a red cat"]
    ids, mask = tokenizer.pad(tokenizer.encode(texts), 16)
    expected = siglip_reference(folders[name])(texts, padding="max_length", max_length=64)["input_ids"]
    assert ids.tolist() == expected and mask.shape == (2, 64) and mask.all()


def test_padding_settings_inside_tokenizer_json_are_not_used(read, tmp_path):
    tokenizer = read("bert")
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


def test_damaged_files_unknown_families_and_unreachable_names_are_refused(folders, tmp_path):
    shutil.copytree(folders["clip"], tmp_path, dirs_exist_ok=True)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nnot in the vocabulary\n")
    (tmp_path / "spiece.model").write_bytes(b"no sentencepiece model")
    for place, config, message in (
        (tmp_path, CLIP, "vocabulary files"),
        (tmp_path, SIGLIP, r"spiece\.model: sentencepiece model"),
        (tmp_path, {"model_type": "gpt2"}, "model_type: found gpt2"),
        ("no-such/model", CLIP, "no-such/model: tokenizer"),
    ):
        refused(message, read_huggingface_tokenizer, place, config)


def test_a_special_token_outside_the_vocabulary_is_refused(folders, read, tmp_path):
    shutil.copytree(folders["bert"], tmp_path, dirs_exist_ok=True)
    read("bert").save(tmp_path / "tokenizer.json")
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
        wrong = rf"tokenizer\.{key}: found {value!r}; wanted a whole number"
        refused(wrong, TokenizerSpec.from_json, {**whole, key: value})
    refused("cleaning: found polish", TokenizerSpec, "clip", "polish", 77, 0, 1)


def test_texts_without_anything_to_repair_are_cleaned_as_by_ftfy():
    rng = random.Random(0)
    letters = [chr(code) for code in range(32, 127)]
    texts = ["".join(rng.choices(letters, k=rng.randrange(80))) for _ in range(3000)] + [
        "a\x0bb",
        "a &amp; b",
        "caf\u00c3\u00a9",
    ]
    for text in texts:
        assert cleaner("whitespace")(text) == " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())
