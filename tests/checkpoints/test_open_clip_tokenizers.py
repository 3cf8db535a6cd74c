"""The tokenizers of open_clip's models, against what open_clip makes of those of `transformers`."""

from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from rococo_jax.checkpoints.formats.open_clip import read_open_clip
from rococo_jax.checkpoints.parameters import ConversionOptions
from rococo_jax.data.tokenizer_files import (
    for_transformers,
    read_huggingface_tokenizer,
    read_open_clip_tokenizer,
    with_padded_end,
)
from rococo_jax.data.tokenizers import CLEANINGS, Tokenizer
from tests.support.open_clip_files import NAMES, open_clip_folder
from tests.support.reference_models import save_words, transformers
from tests.support.refusals import refused

TEXTS = ["A dog on the grass.", "two dogs", "", "the grass on the grass on the grass on the grass on the grass"]


def save_bert(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "##s", "on", "the", "grass", ".", "two"]
    vocabulary = {word: number for number, word in enumerate(words)}
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder


def save_clip(folder):
    return save_words(folder, ["a", "dog", "<|startoftext|>", "<|endoftext|>"], "<|startoftext|>", "<|endoftext|>")


def tokenizer_of(folder):
    return read_open_clip(folder, ConversionOptions()).tokenizer


def test_clipa_replaces_the_separator_by_padding(tmp_path):
    def as_published(config, tensors):
        kwargs = {"hf_tokenizer_name": "bert-base-uncased", "tokenizer_kwargs": {"strip_sep_token": True}}
        config["model_cfg"]["text_cfg"].update(kwargs)

    folder = save_bert(open_clip_folder("clipa", tmp_path / NAMES["clipa"], as_published))
    ours = tokenizer_of(folder)
    # As open_clip's HFTokenizer with `strip_sep_token`.
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    options = {"max_length": 12, "padding": "max_length", "truncation": True}
    expected = np.array(theirs(TEXTS, **options)["input_ids"])
    expected[expected == theirs.sep_token_id] = 0
    ids, mask = ours.pad(ours.encode(TEXTS))
    np.testing.assert_array_equal(ids, expected)
    assert mask.all()  # the tower reads its padding
    copy = Tokenizer(tokenizers.Tokenizer.from_str(ours.rust.to_str()), replace(ours.spec, fixed_length=None))
    assert with_padded_end(copy).hash() == ours.hash()


def test_padding_is_zero_and_visible_to_towers_without_a_causal_mask(tmp_path):
    ours = tokenizer_of(save_clip(open_clip_folder("mobile_large", tmp_path / NAMES["mobile_large"])))
    ids, mask = ours.pad(ours.encode(["dog a", "a"]))
    assert ids.tolist() == [[2, 1, 0, 3] + [0] * 8, [2, 0, 3] + [0] * 9]
    assert mask.all()
    causal = save_clip(open_clip_folder("vit_quick_gelu", tmp_path / "causal"))
    assert tokenizer_of(causal).spec.fixed_length is None


def test_texts_of_metaclip_2_end_as_those_of_xlm_v(tmp_path):
    def as_published(config, tensors):
        config["model_cfg"]["text_cfg"] |= {"hf_tokenizer_name": "facebook/xlm-v-base", "pool_type": "eos", "eos_id": 2}

    folder = open_clip_folder("vit_options", tmp_path / "metaclip2_worldwide", as_published)
    save_words(folder, ["<s>", "<pad>", "</s>", "dog", "a"], "<s>", "</s>")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    parts = read_open_clip(folder, ConversionOptions())
    assert parts.tokenizer.encode(["a dog"]) == [[0, 4, 3, 2]]
    assert (parts.tokenizer.spec.context_length, parts.tokenizer.spec.pad_id) == (12, 1)
    assert (parts.spec.text.pooling, parts.spec.text.eos_id) == ("first_eos", 2)


# open_clip 3.3's `get_clean_fn` of these texts.
ODD = [
    *("“curly” ‘quotes’ it’s", "schÃ¶n mojibake", "fish &amp;amp; chips &lt;b&gt;"),
    *("İstanbul ΟΔΟΣ straße", "A red_bus, two  dogs."),
]
PLAIN = ["\"curly\" 'quotes' it's", "schön mojibake", "fish & chips <b>"]
CLEANED = {
    "whitespace": [*PLAIN, "İstanbul ΟΔΟΣ straße", "A red_bus, two dogs."],
    "lower": [*PLAIN, "i̇stanbul οδος straße", "a red_bus, two dogs."],
    "canonicalize": ["curly quotes its", "schön mojibake", "fish chips b", "i̇stanbul οδος straße",
                     "a red bus two dogs"],
}  # fmt: skip


@pytest.mark.parametrize("name", CLEANED)
def test_a_text_is_cleaned_as_open_clip_cleans_it(name, tmp_path):
    assert [CLEANINGS[name](text) for text in ODD] == CLEANED[name]
    folder = save_clip(tmp_path)
    simple = read_open_clip_tokenizer(folder, "clip", 9, {"clean": name}, simple=True)
    assert simple.spec.cleaning == name and simple.encode(["a  dog"]) == [[2, 0, 1, 3]]
    # In a tokenizer.json, but for the repair of broken Unicode and entities.
    texts = [" a  dog\tA Dog ", "A_dog “a” dog’s", ""]
    assert for_transformers(simple).encode(texts[:1]) == simple.encode(texts[:1])
    if name == "canonicalize":
        assert for_transformers(simple).encode(texts) == simple.encode(texts)
    for simple, default in ((True, "lower"), (False, "whitespace")):
        assert read_open_clip_tokenizer(folder, "clip", 9, {}, simple=simple).spec.cleaning == default


@pytest.mark.parametrize(
    ("arguments", "simple"),
    [
        ({"clean": "nfkc"}, True), ({"clean": None}, False), ({"reduction_mask": "syntax"}, True),
        ({"additional_special_tokens": ["<x>"]}, True), ({"strip_sep_token": True}, True), ({"language": "fra"}, False),
        ({"context_length": 5}, True), ({"use_fast": True}, False),
    ],
)  # fmt: skip
def test_unsupported_arguments_of_the_tokenizer_are_refused(arguments, simple, tmp_path):
    field = rf"open_clip_config.json: text_cfg.tokenizer_kwargs.{next(iter(arguments))}"
    options = {"simple": simple, "config": "open_clip_config.json"}
    refused(field, read_open_clip_tokenizer, save_clip(tmp_path), "clip", 9, arguments, **options)
    off = {"reduction_mask": "", "additional_special_tokens": None, "strip_sep_token": False, "language": None}
    read_open_clip_tokenizer(tmp_path, "clip", 9, off, **options)


def test_settings_of_sentence_transformers_take_precedence_over_those_of_the_tokenizer(tmp_path):
    folder = save_bert(tmp_path)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5, "do_lower_case": true}')
    assert read_huggingface_tokenizer(folder, {"model_type": "bert"}).spec.cleaning == "str_lower"
