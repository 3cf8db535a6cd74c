"""Token ids are those of the reference tokenizers, for each family and every kind of file it comes in."""

import dataclasses
import functools
import html
import json
import random
import shutil
import string
import unicodedata
import warnings
from pathlib import Path
from types import SimpleNamespace

import ftfy
import numpy as np
import pytest
from transformers import AutoTokenizer, BertTokenizer, CLIPTokenizer, Siglip2Tokenizer, SiglipTokenizer

from rococo_jax.checkpoints.parameters import check_tokenizer
from rococo_jax.data.siglip_tokenizer import SIGLIP_CLEANING
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import CLEANINGS, Tokenizer, TokenizerSpec
from rococo_jax.models import ModelSpec
from tests.support.cases import further
from tests.support.refusals import refused
from tests.support.tiny import tiny_spec
from tests.support.tokenizer_files import ODD_TEXTS, sentences, write_bert, write_clip, write_gemma, write_siglip

CLIP = {"model_type": "clip", "text_config": {"max_position_embeddings": 77}}
SIGLIP = {"model_type": "siglip", "text_config": {"max_position_embeddings": 64}}
BERT = {"model_type": "bert", "max_position_embeddings": 512}


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
def test_token_ids_equal_the_reference(name, read, folders):
    ours = read(name)
    assert_equal_to_reference(ours, FAMILIES[name][1](folders[name]), sentences(300) + ODD_TEXTS)
    if name == "clip json":
        assert not (folders[name] / "vocab.json").exists() and ours.spec.pad_id != ours.spec.eos_id
    if "siglip" in name:
        assert ours.spec.fixed_length == ours.spec.context_length == 64


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "siglip nmt_nfkc",
        pytest.param("tower", marks=pytest.mark.slow),
        *further(("clip", "siglip identity"), (), pytest.mark.thorough),
    ],
)
def test_token_ids_of_coco_captions_equal_the_reference(name, folders, real_data):
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
    write_gemma(tmp_path)
    reference = Siglip2Tokenizer.from_pretrained(tmp_path)
    ours = read_huggingface_tokenizer(tmp_path, SIGLIP)
    assert ours.spec.eos_id == 1 and ours.spec.pad_id == 0
    assert_equal_to_reference(ours, reference, [*sentences(50), *ODD_TEXTS])


def test_siglip_texts_are_cleaned_as_python_cleans_them():
    """Beside the Python code of the reference, for every character of Unicode and for random strings."""
    reference = SimpleNamespace(do_lower_case=True)
    reference.remove_punctuation = functools.partial(SiglipTokenizer.remove_punctuation, reference)

    def expected(text: str) -> str:
        return SiglipTokenizer.canonicalize_text(reference, "▁" + text.replace("▁", " "))

    # Python's tables and those of the Rust library are of different years; U+1171E changed its class between them.
    known = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    known.remove("\U0001171e")
    random_text = random.Random(0)
    odd = [*string.printable, *"ΣΣΣσςİıßẞŉ▁▁  \u00a0\u3000\x1c\x85’·\u0301\u200b\u00ad:ʰ"]
    forms = [f"{each} a{each}Σ Σ{each} aΣ{each}a" for each in known]
    texts = [" ".join(forms[start : start + 64]) for start in range(0, len(forms), 64)]
    for _ in range(10_000):
        letters = odd if random_text.random() < 0.9 else known
        texts.append("".join(random_text.choices(letters, k=random_text.randint(1, 12))))
    clean = SIGLIP_CLEANING.normalize_str
    different = [text for text in texts if clean(text) != expected(text)]
    assert not different, f"{len(different)} texts, such as {different[:3]}"


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


def test_token_ids_do_not_depend_on_other_texts_of_the_batch(any_tokenizer, monkeypatch):
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


def test_padding_uses_the_pad_id_and_the_mask_marks_it(read):
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
def test_siglip_texts_are_always_padded_to_64_and_their_padding_is_visible(name, read, folders):
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
def test_a_folder_without_a_complete_tokenizer_is_refused(files, config, tmp_path):
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


def test_texts_that_need_no_repair_are_cleaned_as_by_ftfy():
    rng = random.Random(0)
    letters = [chr(code) for code in range(32, 127)]
    texts = ["".join(rng.choices(letters, k=rng.randrange(80))) for _ in range(3000)] + [
        "a\x0bb",
        "a &amp; b",
        "caf\u00c3\u00a9",
    ]
    for text in texts:
        assert CLEANINGS["whitespace"](text) == " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())
