"""Test readers of models, captions and results on random damage: each returns a value or raises InputError.

`tests/support/fuzz.py` says how many examples each gets; `test_fuzz_data.py` has benchmarks and packed data.
"""

import json
import shutil
from pathlib import Path

import pytest

from rococo_jax.benchmarks.readers.sugarcrepe import INFO as SUGARCREPE
from rococo_jax.benchmarks.rococo.annotations import (
    AlteredCaptions,
    read_annotation,
    read_annotation_folder,
    write_annotation,
)
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.checkpoints.formats import convert
from rococo_jax.checkpoints.model_directory import read_description
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import TokenizerSpec
from rococo_jax.evaluation.models.arrays import read_array, read_score_annotation
from rococo_jax.evaluation.results import read_results
from rococo_jax.perturb.text.influence_table import read_influence_table
from rococo_jax.perturb.text.lexicon import read_lexicon
from tests.support import fuzz
from tests.support.faults import World
from tests.support.fuzz import changed_bytes, changed_json, changed_lines
from tests.support.refusals import refused


def _folder(path: Path) -> None:
    read_annotation_folder(path.parent)


def _convert(path: Path) -> None:
    convert(path.parent)


def _description(path: Path) -> None:
    _, description = read_description(path.parent)
    for kind, name in ((Preprocessing, "preprocessing"), (TokenizerSpec, "tokenizer")):
        if description[name] is not None:
            kind.from_json(description[name], path)


def _open_choices(path: Path) -> None:
    folders = {"images": path.parent.parent / "images", "annotations": path.parent}
    SUGARCREPE.open(folders, Settings(allow_missing_images=True))


# Reader -> its file below the samples, how it is called with the damaged one, and the damage.
READERS = {
    "published annotation": ("annotations/danger.json", read_annotation, changed_json),
    "own annotation": ("own.json", read_annotation, changed_json),
    "annotation folder": ("annotations/danger.json", _folder, changed_json),
    "captions": ("captions.json", read_captions, changed_json),
    "annotation to score": ("annotations/danger.json", read_score_annotation, changed_json),
    "SugarCrepe": ("crepe/add_att.json", _open_choices, changed_json),
    "lexicon": ("lexicon.json", read_lexicon, changed_json),
    "results": ("truth/results.json", read_results, changed_json),
    "model.json": ("model/model.json", _description, changed_json),
    "config.json": ("hf/config.json", _convert, changed_json),
    "preprocessor_config.json": ("hf/preprocessor_config.json", _convert, changed_json),
    "tokenizer_config.json": ("hf/tokenizer_config.json", _convert, changed_json),
    "captions as JSON lines": ("captions.jsonl", read_captions, changed_lines),
    "influence table": ("influence.jsonl", read_influence_table, changed_lines),
    ".npy": ("s.npy", read_array, changed_bytes),
    "JSON text": ("annotations/danger.json", read_annotation, changed_bytes),
    "tokenizer.json": ("hf/tokenizer.json", _convert, changed_bytes),
}
GROUP = {"concept": "animal", "kind": "thing", "nouns": {"dog": "dogs"}, "plural_only": ["cattle"]}
LEXICON = {"format": "rococo_jax.lexicon", "version": 1, "groups": [GROUP], "synonyms": [["dog", "hound"]],
           "more_general": {"dog": ["animal"]}}  # fmt: skip
CREPE = {"0": {"filename": "00.png", "caption": "a dog", "negative_caption": "a cat"}}
CAPTIONS = [{"image": "a.jpg", "caption": "a dog"}, {"image": "b.jpg", "captions": ["two men", "a boat"]}]
INFLUENCE = {"image": "a.jpg", "caption": "A dog.", "words": ["A", "dog"], "influence": [0.1, None]}


@pytest.fixture(scope="module")
def samples(pristine, tmp_path_factory) -> World:
    """Whole files of every kind, in a folder that the tests may damage."""
    world = World(Path(shutil.copytree(pristine, tmp_path_factory.mktemp("fuzz") / "world")))
    items = [AlteredCaptions("a.jpg", ("A dog.", "A cat."), ("A gun.", None))]
    write_annotation(world / "own.json", "own", items, made_by={"seed": 1})
    (world / "crepe").mkdir()
    for file, rows in {"crepe/add_att.json": [CREPE], "lexicon.json": [LEXICON], "captions.jsonl": CAPTIONS,
                       "influence.jsonl": [INFLUENCE]}.items():  # fmt: skip
        (world / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return world


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name, samples):
    file, read, damage = READERS[name]
    fuzz.check(samples / file, read, damage)


# Found by `tools/fuzz.py`.
INFLUENCES = [None, [[], None], [1e39, None], [float("inf"), 0.1], [0.1, "0.1"], [True, 0.1], {"A": 1, "dog": 2}]


@pytest.mark.parametrize("influence", INFLUENCES, ids=repr)
def test_an_influence_that_is_not_a_number_is_refused(tmp_path, influence):
    (tmp_path / "influence.jsonl").write_text(json.dumps({**INFLUENCE, "influence": influence}) + "\n")
    refused("words of line 1: found the influence", read_influence_table, tmp_path / "influence.jsonl")
