"""Readers of models, captions and results on random damage: each returns a value or raises InputError.

`tests/support/fuzz.py` says how many examples each gets; `test_fuzz_data.py` has benchmarks and packed data.
"""

import contextlib
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rococo_jax.benchmarks.rococo.annotations import (
    AlteredCaptions,
    read_annotation,
    read_annotation_folder,
    write_annotation,
)
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.sugarcrepe import INFO as SUGARCREPE
from rococo_jax.checkpoints.formats import convert
from rococo_jax.checkpoints.formats.big_vision import read_npz
from rococo_jax.checkpoints.model_directory import read_description
from rococo_jax.checkpoints.tensors import open_safetensors, write_safetensors
from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.data.captioned_images import read_captions
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import TokenizerSpec
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.arrays import read_array, read_score_annotation
from rococo_jax.evaluation.results import read_results
from rococo_jax.perturb.text.influence_table import read_influence_table
from rococo_jax.perturb.text.lexicon import read_lexicon
from tests.support import fuzz
from tests.support.faults import World
from tests.support.fuzz import FUZZ, changed_bytes, changed_json, check_bytes, read_damaged, refuses


def _folder(path: Path) -> None:
    read_annotation_folder(path.parent)


def _convert(path: Path) -> None:
    convert(path.parent)


def _all_tensors(tensors) -> None:
    with tensors:
        for name in tensors.names:
            tensors.about(name), tensors.read(name)


def _description(path: Path) -> None:
    _, description = read_description(path.parent)
    for kind, name in ((Preprocessing, "preprocessing"), (TokenizerSpec, "tokenizer")):
        if description[name] is not None:
            kind.from_json(description[name], path)


def _open_choices(path: Path) -> None:
    folders = {"images": path.parent.parent / "images", "annotations": path.parent}
    SUGARCREPE.open(folders, Settings(allow_missing_images=True))


def _open_pt(path: Path) -> None:
    _all_tensors(open_torch_archive(path))


# Reader -> its file below the samples, and how it is called with the damaged one.
JSON_READERS = {
    "published annotation": ("annotations/danger.json", read_annotation),
    "own annotation": ("own.json", read_annotation),
    "annotation folder": ("annotations/danger.json", _folder),
    "captions": ("captions.json", read_captions),
    "annotation to score": ("annotations/danger.json", read_score_annotation),
    "SugarCrepe": ("crepe/add_att.json", _open_choices),
    "lexicon": ("lexicon.json", read_lexicon),
    "results": ("truth/results.json", read_results),
    "model.json": ("model/model.json", _description),
    "config.json": ("hf/config.json", _convert),
    "preprocessor_config.json": ("hf/preprocessor_config.json", _convert),
    "tokenizer_config.json": ("hf/tokenizer_config.json", _convert),
}
LINE_READERS = {
    "captions as JSON lines": ("captions.jsonl", read_captions),
    "influence table": ("influence.jsonl", read_influence_table),
}
BYTE_READERS = {
    ".npy": ("s.npy", read_array),
    ".npz": ("small.npz", read_npz),
    "safetensors": ("small/model.safetensors", lambda path: _all_tensors(open_safetensors(path))),
    ".pt": ("small.pt", _open_pt),
    "JSON text": ("annotations/danger.json", read_annotation),
    "tokenizer.json": ("hf/tokenizer.json", _convert),
}


@pytest.fixture(scope="module")
def samples(pristine, tmp_path_factory) -> World:
    """Whole files of every kind, in a folder that the tests may damage."""
    world = World(Path(shutil.copytree(pristine, tmp_path_factory.mktemp("fuzz") / "world")))
    items = [AlteredCaptions("a.jpg", ("A dog.", "A cat."), ("A gun.", None))]
    write_annotation(world / "own.json", "own", items, made_by={"seed": 1})
    part = {"0": {"filename": "00.png", "caption": "a dog", "negative_caption": "a cat"}}
    (world / "crepe").mkdir()
    (world / "crepe/add_att.json").write_text(json.dumps(part))
    group = {"concept": "animal", "kind": "thing", "nouns": {"dog": "dogs"}, "plural_only": ["cattle"]}
    lexicon = {"format": "rococo_jax.lexicon", "version": 1, "groups": [group], "synonyms": [["dog", "hound"]],
               "more_general": {"dog": ["animal"]}}  # fmt: skip
    (world / "lexicon.json").write_text(json.dumps(lexicon))
    lines = ({"image": "a.jpg", "caption": "a dog"}, {"image": "b.jpg", "captions": ["two men", "a boat"]})
    (world / "captions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    row = {"image": "a.jpg", "caption": "A dog.", "words": ["A", "dog"], "influence": [0.1, None]}
    (world / "influence.jsonl").write_text(json.dumps(row) + "\n")
    arrays = {"params/img/kernel": np.ones((2, 3), np.float32), "params/t": np.zeros((), np.float16)}
    np.savez(world / "small.npz", **arrays)
    (world / "small").mkdir()
    write_safetensors(world / "small/model.safetensors", {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.int64)})
    with contextlib.suppress(ImportError):
        import torch

        torch.save({"a": torch.ones(2, 3), "b": {"c": torch.zeros(4, dtype=torch.int64)}}, world / "small.pt")
    return world


@pytest.mark.parametrize("name", JSON_READERS)
def test_changed_values(name, samples):
    file, read = JSON_READERS[name]
    path = samples / file

    @FUZZ
    @given(changed_json(json.loads(path.read_text())))
    def check(changed):
        read_damaged(path, json.dumps(changed).encode(), lambda: read(path))

    read(path)
    fuzz.run(check)


@pytest.mark.parametrize("name", LINE_READERS)
def test_changed_lines(name, samples):
    file, read = LINE_READERS[name]
    path = samples / file

    @FUZZ
    @given(changed_json([json.loads(line) for line in path.read_text().splitlines()]), st.data())
    def check(changed, data):
        text = "".join(f"{json.dumps(line)}\n" for line in (changed if isinstance(changed, list) else [changed]))
        content = data.draw(changed_bytes(text.encode())) if data.draw(st.booleans()) else text.encode()
        read_damaged(path, content, lambda: read(path))

    read(path)
    fuzz.run(check)


# Found by `tools/fuzz.py`.
INFLUENCES = [None, [[], None], [1e39, None], [float("inf"), 0.1], [0.1, "0.1"], [True, 0.1], {"A": 1, "dog": 2}]


@pytest.mark.parametrize("influence", INFLUENCES, ids=repr)
def test_an_influence_that_is_no_number_is_refused(tmp_path, influence):
    row = {"image": "a.jpg", "caption": "A dog.", "words": ["A", "dog"], "influence": influence}
    (tmp_path / "influence.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="words of line 1: found the influence"):
        read_influence_table(tmp_path / "influence.jsonl")


@pytest.mark.parametrize("name", BYTE_READERS)
def test_changed_bytes(name, samples):
    file, read = BYTE_READERS[name]
    if not (samples / file).exists():
        pytest.skip("needs torch to write a sample")
    check_bytes(samples / file, read)


def test_a_pickle_of_any_bytes_in_a_zip_archive(tmp_path):
    path = tmp_path / "a.pt"

    @FUZZ
    @given(st.binary(max_size=300))
    def check(content):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a/data.pkl", content)
        refuses(lambda: _open_pt(path))

    fuzz.run(check)


def test_a_pickle_that_calls_functions_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("a/data.pkl", pickle.dumps(Evil()))
    with pytest.raises(InputError):
        _open_pt(tmp_path / "a.pt")
