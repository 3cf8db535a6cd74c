"""Attacks on captions, against searches over all altered captions written out by hand."""

import json

import numpy as np
import pytest

from rococo_jax import load_model
from rococo_jax.attacks.captions import Spaces, certificate
from rococo_jax.attacks.changes import Change, apply_changes
from rococo_jax.attacks.run import ITEMS as TABLE
from rococo_jax.attacks.summary import curve_point
from rococo_jax.storage import read_table
from tests.attacks.worlds import (
    ITEMS,
    Constant,
    IgnoresThirdWord,
    LovesATrigger,
    Pairs,
    Words,
    altered_by_hand,
    attack_of,
)
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def model():
    return load_model("demo:plain")


def best_by_hand(model, paths, goal):
    """Return for each image whether it is right, and the highest margin with one and with two changes."""
    from PIL import Image

    images = np.asarray(model.encode_image([Image.open(path) for path in paths]), np.float64)
    texts = list(dict.fromkeys(caption for item in ITEMS for caption in item.captions))
    gallery = images @ np.asarray(model.encode_text(texts), np.float64).T
    results = []
    for number, item in enumerate(ITEMS):
        own = max(gallery[number, texts.index(caption)] for caption in item.captions)
        others = [gallery[number, row] for row, text in enumerate(texts) if text not in item.captions]
        threshold = max(own, *others) if goal == "gallery" else own
        margins = []
        for count in (1, 2):
            altered = sorted(altered_by_hand(item, count))
            scores = np.asarray(model.encode_text(altered), np.float64) @ images[number] if altered else np.empty(0)
            margins.append(scores.max(initial=-9) - threshold)
        results.append((goal == "own" or own > max(others), *margins))
    return results


def test_altered_captions_match_a_list_written_by_hand():
    attack = attack_of()
    spaces = Spaces(attack, ITEMS)
    for query, item in zip(attack.make_queries(ITEMS), ITEMS, strict=True):
        space = spaces(query)
        for count in (1, 2):
            assert {each.text for each in space.combinations(count)} == altered_by_hand(item, count), (item, count)


@pytest.mark.parametrize("goal", [pytest.param("own", marks=pytest.mark.thorough), "gallery"])
def test_exhaustive_search_finds_the_same_smallest_change_as_a_search_by_hand(model, attack, paths, goal):
    records = attack(model, attack_of(goal=goal)).records["words"]
    for record, (right, one, two) in zip(records, best_by_hand(model, paths, goal), strict=True):
        assert record["right"] == right
        assert record["smallest"] == (1 if one >= 0 else 2 if two >= 0 else None)
        assert record["margin"] == pytest.approx(one if one >= 0 else two if two >= 0 else max(one, two), abs=2e-6)
        assert certificate(record, 2) == ("broken" if record["smallest"] else "proved")


@pytest.mark.slow
@pytest.mark.parametrize("search", ["exhaustive", "beam", "greedy"])
def test_a_larger_budget_never_finds_a_larger_smallest_change(attack, search):
    smallest = [None] * len(ITEMS)
    for queries in (1, 3, 10, 40, 200, None):
        records = attack(Words(), attack_of(search=search, queries=queries), out=f"of_{queries}").records["words"]
        for before, record in zip(smallest, records, strict=True):
            assert before is None or record["smallest"] <= before
            assert queries is None or record["tried"] <= queries
        smallest = [record["smallest"] for record in records]
    if search == "greedy":  # it proves nothing
        assert {certificate(record, 1) for record in records} <= {"broken", "open"}


@pytest.mark.parametrize("search", ["exhaustive", "beam", "greedy"])
def test_the_first_witness_is_as_small_as_the_best_one_and_needs_fewer_tries(attack, search, monkeypatch):
    monkeypatch.setattr("rococo_jax.attacks.captions.FIRST_BLOCK", 2)
    first, best = (
        attack(LovesATrigger(), attack_of(search=search, witness=name), out=name) for name in ("first", "best")
    )
    for one, other in zip(first.records["words"], best.records["words"], strict=True):
        same = ("smallest", "first", "candidates", "right")
        assert [one[key] for key in same] == [other[key] for key in same]
        assert one["margin"] <= other["margin"] and (one["smallest"] is None) == (one["margin"] < 0)
        assert [certificate(one, count) for count in (1, 2)] == [certificate(other, count) for count in (1, 2)]
        assert one["tried"] <= other["tried"]
    tried = [results.summary["results"]["words"]["tried"] for results in (first, best)]
    assert search == "greedy" or tried[0] < 0.8 * tried[1]


@pytest.mark.slow
def test_beam_search_finds_the_smallest_changes_of_exhaustive_search_with_fewer_tries(model, attack):
    both = (attack(model, attack_of(search=name), out=name).records["words"] for name in ("exhaustive", "beam"))
    exhaustive, beam = both
    assert [each["smallest"] for each in beam] == [each["smallest"] for each in exhaustive]
    assert all(each["complete"] >= 1 for each in beam if each["smallest"] is None)
    assert sum(each["tried"] for each in beam) < sum(each["tried"] for each in exhaustive)


def test_an_item_stays_open_if_the_budget_is_exhausted(model, attack):
    records = attack(model, attack_of(queries=5)).records["words"]
    states = {certificate(record, 1) for record in records}
    assert "open" in states and "proved" not in states
    assert all(record["complete"] == 0 for record in records if record["tried"] == 5 and record["smallest"] is None)


def test_a_model_that_ignores_the_third_word_is_fooled_by_it(attack):
    records = attack(IgnoresThirdWord(), attack_of(budgets=(1,), goal="own")).records["words"]
    # The third word of "Two dogs", and of captions whose third word is no noun or colour, cannot be replaced.
    fooled = [record for record in records if record["smallest"] == 1]
    assert [record["image"] for record in fooled] and all(record["margin"] >= 0 for record in fooled)
    assert "2.png" in {record["image"] for record in fooled}  # "A white house and a cow"
    whole = attack(Words(), attack_of(budgets=(1,), goal="own"), out="whole").records["words"]
    assert not any(record["image"] == "2.png" and record["smallest"] for record in whole)


def test_a_trigger_word_is_found(attack):
    result = attack(LovesATrigger(), attack_of(budgets=(1,), goal="own"))
    can_insert = [record for record in result.records["words"] if record["image"] != "1.png"]
    assert all("owl" in record["text"].lower() for record in can_insert if record["smallest"])
    assert sum(record["smallest"] == 1 for record in can_insert) == 4  # all of them have an animal
    found = attack(LovesATrigger(), attack_of(budgets=(1,)), out="universal", universal=2)
    (first, *_) = found.summary["results"]["universal"]["captions"]
    assert "owl" in first["text"].lower()


@pytest.mark.parametrize("goal", ["own", "gallery"])
def test_a_constant_model_survives_no_attack(attack, goal):
    result = attack(Constant(), attack_of(budgets=(1,), goal=goal)).summary["results"]["words"]
    assert result["values"]["r1_1"] == (0 if goal == "gallery" else pytest.approx(0))
    assert result["values"]["survival_1"] == 0 and result["values"]["fr1_1"] == 100


@pytest.mark.slow
def test_a_pair_scorer_and_an_encoder_with_equal_similarities_are_attacked_alike(attack):
    by_pairs = attack(Pairs(), attack_of(), out="pairs").records["words"]
    by_vectors = attack(Words(), attack_of(), out="vectors").records["words"]
    for one, two in zip(by_pairs, by_vectors, strict=True):
        assert one["margin"] == pytest.approx(two["margin"], abs=1e-5)
        assert {**one, "margin": 0} == {**two, "margin": 0}
    refused("characters: found a model that only scores pairs", attack, Pairs(), attack_of("characters", (1,)), out="c")


def test_misspelled_captions_are_queries_that_lose_their_image(attack):
    result = attack(Words(), attack_of("characters", (1,)))
    records = result.records["characters"]
    assert len(records) == sum(len(item.captions) for item in ITEMS)
    for record in (record for record in records if record["smallest"]):
        item = next(item for item in ITEMS if item.image == record["image"])
        assert min(edit_distance(record["text"], caption) for caption in item.captions) == 1
    of_captions = {word for item in ITEMS for caption in item.captions for word in caption.lower().split()}
    written = {word for record in records if record["text"] for word in record["text"].lower().split()}
    assert not written & {"cats", "cars", "owls", "puppies", "houses"} - of_captions  # no other English word
    values = result.summary["results"]["characters"]["values"]
    assert values["r1_1"] < values["r1"]


def edit_distance(one: str, two: str) -> int:
    row = list(range(len(two) + 1))
    for number, left in enumerate(one, 1):
        previous, row[0] = row[0], number
        for place, right in enumerate(two, 1):
            previous, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, previous + (left != right))
    return row[-1]


def test_an_interrupted_attack_resumes_with_the_same_bytes(attack, tmp_path, monkeypatch):
    monkeypatch.setattr("rococo_jax.attacks.captions.GROUP", 2)
    attack(Words(), attack_of(), out="whole")

    class Stops(Words):
        limit = 10**9

        def encode_text(self, texts):
            if self.calls > self.limit:
                raise KeyboardInterrupt
            return super().encode_text(texts)

        def fingerprint(self):
            return "Words 48"

    whole = Words()
    attack(whole, attack_of(), out="counted")
    for _ in range(2):
        stops = Stops()
        stops.limit = whole.calls // 3
        with pytest.raises(KeyboardInterrupt):
            attack(stops, attack_of(), out="cut")
    journal = (tmp_path / "cut/.attack.words.jsonl").read_text()
    assert len(journal.splitlines()) > 1
    (tmp_path / "cut/.attack.words.jsonl").write_text(journal + '[{"image": "cut off')
    resumed = Stops()
    attack(resumed, attack_of(), out="cut")
    assert resumed.calls < whole.calls
    one, two = (read_table(tmp_path / name / TABLE, "items").to_pylist() for name in ("whole", "cut"))
    assert one == two and not (tmp_path / "cut/.attack.words.jsonl").exists()
    # The same attack again computes nothing; another one is refused.
    again = Stops()
    attack(again, attack_of(), out="cut")
    assert again.calls < resumed.calls
    refused("results of another attack", attack, Stops(), attack_of(seed=1), out="cut")


def test_a_point_of_the_curve_counts_items_that_are_right_and_not_fooled_yet():
    records = [
        {"right": right, "first": first} for right, first in ((True, None), (True, 3), (False, None), (False, 1))
    ]
    points = {queries: curve_point(records, queries) for queries in (0, 1, 3)}
    assert {queries: (point["r1"], point["fr1"]) for queries, point in points.items()} == {
        0: (50, 0), 1: (50, 25), 3: (25, 50),
    }  # fmt: skip


def test_an_article_before_a_changed_word_follows_it():
    changes = [Change(0, 1, "no", "negation"), Change(2, 5, "owl", "same_concept")]
    assert apply_changes("A dog on a car", changes) == "No owl on a car"
    changes = [Change(2, 5, "owl", "same_concept"), Change(11, 11, "orange ", "addition")]
    assert apply_changes("A dog on a car", changes) == "An owl on an orange car"


def test_results_contain_settings_and_witnesses(attack, tmp_path):
    result = attack(Words(), attack_of())
    written = json.loads((tmp_path / "out/attack.json").read_text())
    assert written == json.loads(json.dumps(result.summary))
    assert written["attacks"][0]["kinds"] == ["same_concept", "attribute"]
    table = read_table(tmp_path / "out" / TABLE, "items").to_pylist()
    for row in table:
        if row["text"]:
            item = next(item for item in ITEMS if item.image == row["image"])
            changes = [Change(*change) for change in json.loads(row["changes"])]
            assert apply_changes(item.captions[row["caption"]], changes) == row["text"]
