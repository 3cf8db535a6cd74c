"""Grounded or blind on the page: beside FR@1, against what sees no image, paired, and with examples."""

import dataclasses
import json
import re

import numpy as np
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings
from rococo_jax.benchmarks.tasks.pairs import AlteredPairs
from rococo_jax.evaluation.examples import Side
from rococo_jax.report import write_report
from rococo_jax.report.blocks import render_block
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.comparison import compare_groups
from rococo_jax.report.examples import WON, choose_examples, example_cards
from rococo_jax.report.sections.generic import grounding_part
from rococo_jax.report.vocabulary import sort_key
from tests.support.made_runs import made_benchmark, make_run
from tests.support.pages import example


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for place, noise in enumerate((0.5, 2.0)):
        make_run(folder / str(place), f"model-{place}", noise, seed=place)
    return folder


def test_the_first_table_has_blind_and_grounding_next_to_false_recall(runs, tmp_path):
    page = write_report([runs], tmp_path / "report.html")[0].read_text()
    table = page[page.index("Models, image_to_text") :]
    heads = re.findall(r'<button type="button"[^>]*>([^<]*)</button>', table[: table.index("</thead>")])
    assert heads[5:10] == ["R@1", "FR@1", "Blind", "Grounding", "Drop"]
    assert "50 is unbiased" in page and "Grounded or blind" in page


def test_baselines_are_shown_in_grey_once_for_every_variant(runs):
    (group,) = group_by_fingerprint(load_results([runs]))
    drawn = render_block(grounding_part(group.runs, "image_to_text"))
    assert len(re.findall(r'<td class="[^"]*soft', drawn)) == 2 * 2
    assert "Shorter wins" in drawn and "Bigrams" not in drawn
    value = group.runs[0].results["baselines"]["tasks"]["image_to_text"]["danger"]["shorter"]["preference"]
    assert f'soft" data-value="{sort_key(value)}"' in drawn
    assert "Shorter wins" not in render_block(grounding_part(group.runs, "text_to_image"))


def test_paired_differences_of_pairs_match_the_results(runs):
    comparison = compare_groups(group_by_fingerprint(load_results([runs])), "model-0")[0, "image_to_text"]
    shares = ["r1", "r5", "r10", "r_mean", "fr1", "preference", "blind", "grounding", "difference_r1"]
    assert {row.metric for row in comparison.rows} == set(shares)
    results = [json.loads((runs / str(place) / "results.json").read_text()) for place in range(2)]
    of_danger = [each["tasks"]["image_to_text"]["danger"] for each in results]
    found = {row.metric: row for row in comparison.rows if row.variant == "danger"}
    assert found.keys() == set(shares)
    for name in shares:
        values = [abs(each[name] - 50) if name == "blind" else each[name] for each in of_danger]
        assert found[name].points == pytest.approx(values[1] - values[0])
        assert found[name].low <= found[name].points <= found[name].high
    assert found["grounding"].p < 0.01
    assert {row.metric for row in comparison.rows if row.variant == "clean"} == {"r1", "r5", "r10", "r_mean"}


def test_examples_show_pairs_preferred_by_most_unrelated_images_or_by_none(runs):
    """Three pairs, image by image: the caption of the first is preferred by all, of the second by its image alone."""
    images = np.eye(4, 5, dtype=np.float32) + np.array([0, 0, 0, 0, 1], np.float32)
    texts = np.zeros((4, 5), np.float32)
    texts[0, 4], texts[2, 1] = 1, 1
    texts[2, [0, 2, 3]] = -1
    benchmark = dataclasses.replace(made_benchmark(), images=("a", "b", "c", "d"), texts=("one", "1", "two", "2"))
    rows = made_benchmark().tasks[0].queries
    queries = rows[:4]
    text = made_benchmark().tasks[0].gallery
    pairs = AlteredPairs(queries, np.arange(4), text[np.array([0, 2])], text[np.array([1, 3])], np.array([0, 1]))
    statistics = pairs.score(Embeddings({ORIGINALS: images, TEXTS: texts}))
    blind, looking = pairs.won(("image_to_text", "danger", None), statistics, benchmark)
    assert (blind.role, blind.query.image, blind.right.text) == ("won_blind", "a", "one")
    assert (
        blind.query.note
        == "100 % of 3 unrelated images prefer the original too; the margin of the matching one ranks 2.5 of 4"
    )
    assert (looking.role, looking.query.image, looking.wrong.text) == ("won_looking", "b", "2")
    assert looking.query.note.startswith("0 % of 3 unrelated images") and looking.query.note.endswith("ranks 1 of 4")
    # Half of the others is not most of them.
    half = dataclasses.replace(statistics, preferring=statistics.unrelated)
    assert [each.role for each in pairs.won(("image_to_text", "danger", None), half, benchmark)] == ["won_looking"]


def test_cards_state_how_many_unrelated_images_prefer_the_pair():
    query = Side(
        image="a.jpg",
        note="99 % of 3 unrelated images prefer the original too; the margin of the matching one ranks 1 of 4",
    )
    made = [
        example(role=role, query=query, right=Side(text="a red cat"), wrong=Side(text="a red weapon"), order=place)
        for place, role in enumerate(("error", *reversed(WON)))
    ]
    chosen = choose_examples(made, made[0].task, WON, 5)
    assert [each.role for each in chosen] == list(WON)
    drawn = render_block(example_cards(chosen))
    assert drawn.count("correct without the image") == drawn.count("correct because of the image") == 1
    assert "<del>cat</del>" in drawn and "<mark>weapon</mark>" in drawn and "99 % of 3 unrelated images" in drawn
