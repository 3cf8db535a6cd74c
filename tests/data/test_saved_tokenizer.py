"""A tokenizer without a model: ids are those of the library that saved it, in every form that people have it."""

import json
import shutil
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from rococo_jax.checkpoints import save_model
from rococo_jax.errors import InputError
from rococo_jax.training.config import default_config
from rococo_jax.training.init import read_tokenizer, starting_encoder
from tests.support.tiny import tiny_encoder
from tests.support.tiny_runs import changed

TEXTS = ["a dog", "dogs do a gag", ""]


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> tuple[Path, transformers.PreTrainedTokenizerBase]:
    """A CLIP tokenizer of letters and one word, as `save_pretrained` writes it."""
    folder = tmp_path_factory.mktemp("clip")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "do", "dog</w>", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nd o\ndo g</w>\n")
    library = transformers.CLIPTokenizer.from_pretrained(str(folder))
    library.save_pretrained(folder / "saved")
    return folder / "saved", library


@pytest.mark.parametrize("form", ["folder", "file", "file alone"])
def test_token_ids_match_transformers(form, clip, tmp_path):
    folder, library = clip
    source = {"folder": folder, "file": folder / "tokenizer.json", "file alone": tmp_path / "mine.json"}[form]
    shutil.copy(folder / "tokenizer.json", tmp_path / "mine.json")
    tokenizer = read_tokenizer(str(source), 5)
    assert tokenizer.encode(TEXTS) == library(TEXTS, truncation=True, max_length=5)["input_ids"]
    assert (tokenizer.spec.eos_id, tokenizer.spec.pad_id) == (library.eos_token_id, library.pad_token_id)
    assert tokenizer.spec.context_length == 5


def test_a_tokenizer_of_no_known_class_is_read_from_its_file(tmp_path):
    words = {"[UNK]": 0, "[PAD]": 1, "a": 2, "dog": 3, "</s>": 4}
    rust = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 4)])
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "</s>"}
    library = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **special)
    library.save_pretrained(tmp_path)
    tokenizer = read_tokenizer(str(tmp_path), 24)
    assert tokenizer.encode(TEXTS) == library(TEXTS)["input_ids"]
    assert (tokenizer.spec.eos_id, tokenizer.spec.pad_id) == (4, 1)


def test_the_file_of_a_model_directory_is_read_with_the_settings_beside_it(tmp_path):
    encoder = tiny_encoder()
    save_model(tmp_path / "model", encoder)
    for source in (tmp_path / "model", tmp_path / "model" / "tokenizer.json"):
        assert read_tokenizer(str(source)).hash() == encoder.tokenizer.hash()


@pytest.mark.slow
def test_a_new_model_uses_the_saved_tokenizer(clip):
    folder, library = clip
    spec = tiny_encoder().spec.to_json()
    spec["text"] |= {"vocabulary_size": 0, "pooling": "first_eos", "eos_id": library.eos_token_id}
    preprocessing = tiny_encoder().preprocessing.to_json()
    settings = {"init__spec": spec, "init__preprocessing": preprocessing, "init__tokenizer": str(folder)}
    encoder = starting_encoder(changed(default_config(), **settings))
    assert encoder.spec.text.vocabulary_size == len(library)
    assert encoder.tokenizer.encode(TEXTS) == library(TEXTS)["input_ids"]
    assert encoder.encode_text(TEXTS).shape == (3, spec["text_head"]["dim"])


@pytest.mark.parametrize(
    ("source", "message"), [("none", "nothing there"), ("none.json", "nothing there"), ("", "neither")]
)
def test_files_that_are_not_tokenizers_are_refused(source, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read_tokenizer(str(tmp_path / source))
