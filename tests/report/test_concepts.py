"""FR@1 and preference by replaced word and concept group, against numbers counted by hand and SciPy's intervals."""

import csv
import dataclasses
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli import report
from rococo_jax.perturb.text.lexicon import Group, Lexicon, Noun
from rococo_jax.report.collection import Run, load_results, runs_of
from rococo_jax.report.concepts import (
    NONE,
    add_replaced_words,
    concept_rows,
    concepts_part,
    replaced_word,
)
from tests.support.commands import run_command
from tests.support.made_runs import make_run
from tests.support.pages import results_of, save
from tests.support.refusals import refused

LEXICON = Lexicon(
    [
        Group("animal", "thing", (Noun("dog", "dogs", "animal"), Noun("cat", "cats", "animal"))),
        Group("furniture", "thing", (Noun("sofa", "sofas", "furniture"),)),
    ]
)
# Image, its first result, and for each of its captions the original, the altered caption and the preference.
PAIRS = {
    "1.jpg": ("own_altered", [("A dog sits.", "a cat sits", 0.0), ("Two dogs on a sofa.", "two cats on a sofa", 1.0)]),
    "2.jpg": ("own", [("A cat on a sofa.", "a cat on an oven", 1.0), ("The cat sleeps.", "the dog sleeps", 1.0)]),
    "3.jpg": ("other_altered", [("The sofa.", "the chair", 0.0), ("A gnome.", "an elf", 1.0)]),
    "4.jpg": ("other", [("A dog.", "a dog", 0.5), ("A man and a dog.", "a woman and a cat", 1.0)]),
}
FALSE = {"own_altered", "other_altered"}


@pytest.fixture
def run(tmp_path) -> Run:
    """Results of four images with two captions each, and tables of their queries and pairs."""
    folder = save(tmp_path / "run", results_of("clip"))
    named = {"task": "image_to_text", "variant": "danger"}
    rows = [{**named, "image": image, "top1_kind": kind} for image, (kind, _) in PAIRS.items()]
    pairs = [
        {**named, "image": image, "right": right, "wrong": wrong, "preference": preference}
        for image, (_, captions) in PAIRS.items()
        for right, wrong, preference in captions
    ]
    # Altered images have the names of their originals.
    pairs.append({**named, "task": "text_to_image", "image": "1.jpg", "right": "1.jpg", "wrong": "1.jpg"})
    pq.write_table(pa.Table.from_pylist(rows), folder / "per_query.parquet")
    pq.write_table(pa.Table.from_pylist(pairs), folder / "pairs.parquet")
    (run,) = runs_of(load_results([folder]))
    return run


def test_rows_have_the_words_of_their_altered_captions(run):
    rows = pq.read_table(run.path.with_name("per_query.parquet")).to_pandas()
    named = add_replaced_words(rows, run.files[0], LEXICON).set_index("image")
    assert named.replaced_word["2.jpg"] == ("sofa", "cat") and named.replaced_group["2.jpg"] == ("furniture", "animal")
    assert named.replaced_word["4.jpg"] == (NONE, NONE)  # in none or two words
    items = pd.DataFrame({"task": ["t"], "variant": ["v"], "caption": ["A dog."], "wrong_caption": ["An owl."]})
    assert add_replaced_words(items, run.files[0], LEXICON).replaced_word[0] == ("dog",)


def test_rows_of_a_task_with_another_name_in_the_report_have_the_same_words(run):
    words = [
        add_replaced_words(file.rows().to_pandas(), file, LEXICON).set_index("image").replaced_word.to_dict()
        for file in (run.files[0], dataclasses.replace(run.files[0], tasks={"photographs": "image_to_text"}))
    ]
    assert words[0] == words[1] and words[1]["2.jpg"] == ("sofa", "cat")


def test_the_page_shows_the_shares_of_the_table(run):
    rows = [row for row in concept_rows(run, LEXICON) if (row["level"], row["metric"]) == ("concept", "fr1")]
    part = concepts_part([run], LEXICON)
    ((table,),) = [each.blocks for each in part.blocks if hasattr(each, "summary")]
    shown = {cells[0].text: cells[2].value for cells in table.rows}
    assert shown == {row["concept"]: row["value"] for row in rows} and len(shown) > 2


@pytest.mark.parametrize(
    ("original", "altered", "word"),
    [
        ("A man's T-shirt.", "a woman 's t - shirt", "man"),  # the published files split words in this way
        ("A dog.", "an owl", "dog"),
        ("A dog with a dog.", "a cat with a cat", "dog"),
        ("A person skiing.", "A commiting crime skiing .", "person"),
        ("a man and a dog", "a woman and a cat", None),
        ("a dog", "a dog", None),
    ],
)
def test_the_replaced_word_is_found_by_comparing_captions(original, altered, word):
    assert replaced_word(original, altered) == word


def test_shares_by_group_match_a_count_by_hand(run):
    rows = {(row["concept"], row["metric"]): row for row in concept_rows(run, LEXICON) if row["level"] == "concept"}
    counted = {key: (row["value"], row["n"], row["images"]) for key, row in rows.items()}
    assert counted == {
        # Images 1 and 2; image 1 was fooled. Pairs: two of image 1, one of image 2.
        ("animal", "fr1"): (50.0, 2, 2),
        ("animal", "preference"): (pytest.approx(100 * 2 / 3), 3, 2),
        # Images 2 and 3; image 3 was fooled.
        ("furniture", "fr1"): (50.0, 2, 2),
        ("furniture", "preference"): (50.0, 2, 2),
        # A gnome is in no group, one caption has two replaced words, and one has none: images 3 and 4.
        ("(none)", "fr1"): (50.0, 2, 2),
        ("(none)", "preference"): (pytest.approx(100 * 2.5 / 3), 3, 2),
    }
    assert {row["task"] for row in rows.values()} == {"image_to_text"}


def test_only_words_with_enough_pairs_have_rows(run, monkeypatch):
    assert {row["level"] for row in concept_rows(run, LEXICON)} == {"concept"}
    monkeypatch.setattr("rococo_jax.report.concepts.LEAST_PAIRS", 1)
    words = {(row["word"], row["metric"]): row for row in concept_rows(run, LEXICON) if row["level"] == "word"}
    assert (words["dog", "preference"]["value"], words["dog", "preference"]["n"]) == (50.0, 2)
    assert words["cat", "fr1"]["value"] == 0.0 and words["gnome", "fr1"]["concept"] == "(none)"


def test_the_command_writes_a_table_and_refuses_results_without_altered_captions(tmp_path, capsys):
    folder = make_run(tmp_path / "run", "clip", 0.5)
    run_command(report, folder, "--out", tmp_path / "page.html", "--concepts")
    with Path(tmp_path / "page.concepts.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    photos = [row for row in rows if row["word"] == "photo"]
    assert {(row["variant"], row["metric"], row["n"]) for row in photos} == {
        *(("same_concept", metric, n) for metric, n in (("fr1", "60"), ("preference", "120"))),
        *(("danger", metric, n) for metric, n in (("fr1", "60"), ("preference", "120"))),
    }
    assert "page.concepts.csv" in capsys.readouterr().out
    (folder / "pairs.parquet").unlink()
    words = folder, "--out", tmp_path / "again.html", "--concepts"
    refused("pairs: found no altered captions", run_command, report, *words)
    assert not (tmp_path / "again.html").exists()
