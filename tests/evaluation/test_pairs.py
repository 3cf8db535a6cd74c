"""Test models that score pairs: their suites beside those of vectors, two stages, the cache, bad input."""

import contextlib
import dataclasses
import functools
import hashlib
import types

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

from rococo_jax import evaluate
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders import load_encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.foreign_model import ForeignModel
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.evaluation import pairs
from rococo_jax.evaluation.counts import rows_of_outcomes
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.storage import hash_json
from tests.benchmarks.published_forms import FORMS, write
from tests.support.cases import further
from tests.support.world import noise, write_world

# What only vectors of all images, or of texts alone, can give.
BY_VECTORS = {"preference", "blind", "grounding", "difference_r1", "tot"}
# Pairs that a process scores once more, alone: that of the shortest and of the longest text of its first batch.
COMPARED = 2
RANKS = {"mixed_galleries": ("patch_0.9",), "seeds": (1,), "corruptions": ("contrast",), "severities": (3,)}


class Hashed:
    """A random direction for every image and text, by content."""

    name = "hashed"

    @staticmethod
    def direction(content: bytes) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        vector = np.random.default_rng(seed).standard_normal(8).astype(np.float32)
        return (vector / np.linalg.norm(vector.astype(np.float64))).astype(np.float32)

    def encode_image(self, images):
        return np.stack([self.direction(image.tobytes()) for image in images])

    def encode_text(self, texts):
        return np.stack([self.direction(text.encode()) for text in texts])

    def fingerprint(self):
        return "hashed"


class Cosines:
    """The same by pairs; `count` pairs were scored."""

    name, count = "cosines", 0

    def score_pairs(self, images, texts):
        self.count += len(texts)
        one, other = Hashed().encode_image(images), Hashed().encode_text(texts)
        return np.einsum("ij,ij->i", one.astype(np.float64), other)

    def fingerprint(self):
        return "cosines"


class Both(Hashed, Cosines):
    name = "both"


class CloseScores(Cosines):
    """The cosines in differences that float32 does not hold."""

    def score_pairs(self, images, texts):
        return -1000 + 1e-9 * super().score_pairs(images, texts)

    def fingerprint(self):
        return "close"


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """Six images with five captions each, and one variant."""
    captions = [[f"a thing of kind {image} seen {place}" for place in range(5)] for image in range(6)]
    altered = {"danger": "{} and a weapon".format}
    folder = write_world(tmp_path_factory.mktemp("coco"), captions, picture=noise(6, 8, 6), altered=altered)
    return {"images": folder / "images", "annotations": folder / "annotations"}


def figures(results, without=frozenset()):
    return {
        (task, variant, name): value
        for task, variants in results["tasks"].items()
        for variant, metrics in variants.items()
        for name, value in metrics.items()
        if name not in without
    }


@pytest.fixture(scope="module")
def hashed_file(tmp_path_factory):
    """The encoder as a file that a command line can name."""
    path = tmp_path_factory.mktemp("models") / "hashed.py"
    path.write_text("from tests.evaluation.test_pairs import Hashed, Cosines, Both\n")
    return path


@pytest.mark.slow
def test_pair_scores_are_ranked_in_float64_even_from_the_cache(coco, tmp_path):
    ranks = {"r1", "r5", "fr1", "median_rank", "mean_rank"}
    expected = {key: value for key, value in figures(evaluate(Cosines(), **coco, **RANKS)).items() if key[2] in ranks}
    for _ in range(2):
        results = figures(evaluate(CloseScores(), **coco, **RANKS, cache=tmp_path))
        assert {key: results[key] for key in expected} == expected


@pytest.mark.parametrize("name", further(sorted(FORMS), sorted(FORMS)[::3]))
def test_choices_scored_pair_by_pair_match_those_of_embeddings(name, tmp_path):
    write(FORMS[name], tmp_path)
    folders = {"images": tmp_path / "images", "annotations": tmp_path}
    expected = figures(evaluate(Hashed(), **folders), BY_VECTORS)
    assert len(expected) > 1 and figures(evaluate(Cosines(), **folders)) == expected
    both = evaluate(Both(), **folders, by="pairs")
    assert figures(both) == expected and sum("pair by pair" in note for note in both["notes"]) == 1


def test_galleries_and_grounding_scored_pair_by_pair_match_those_of_embeddings(coco):
    expected = figures(evaluate(Hashed(), **coco, **RANKS))
    found = figures(evaluate(Cosines(), **coco, **RANKS))
    assert found == {key: expected[key] for key in found}
    # What corruption changes of probabilities alone is left out.
    assert {variant for _, variant, _ in expected.keys() - found.keys()} == {"contrast_3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(Both(), id="own", marks=pytest.mark.thorough), pytest.param(Cosines(), id="other")]
)
def test_reranking_the_complete_gallery_gives_the_results_of_embeddings(model, coco, hashed_file):
    expected = figures(evaluate(Hashed(), **coco, **RANKS), BY_VECTORS)
    candidates = None if isinstance(model, Both) else f"{hashed_file}:Hashed"
    found = figures(evaluate(model, **coco, **RANKS, by="pairs", candidates=candidates, rerank=60))
    assert {name for key in found.keys() - expected.keys() for name in key[2:]} == {"candidate_recall"}
    assert {key: found[key] for key in found.keys() & expected.keys()} == {
        key: expected[key] for key in found.keys() & expected.keys()
    }


class Opposite(Both):
    """Pairs say the opposite of the vectors."""

    def score_pairs(self, images, texts):
        return -super().score_pairs(images, texts)


def test_pair_scores_rerank_the_candidates_and_candidate_recall_is_reported(coco):
    asked = {"mixed_galleries": (), "tasks": ("image_to_text",)}
    vectors = figures(evaluate(Hashed(), **coco, **asked))
    reranked = figures(evaluate(Opposite(), **coco, **asked, rerank=5))
    for each in (("image_to_text", "clean"), ("image_to_text", "danger")):
        # A right answer is among the 5 candidates of as many queries as had it among the first 5.
        assert reranked[*each, "candidate_recall"] == reranked[*each, "r5"] == vectors[*each, "r5"]
    assert any(reranked[key] != vectors[key] for key in vectors.keys() & reranked.keys() if key[2].startswith("top1"))
    alone, last = (figures(evaluate(Opposite(), **coco, **asked, **how)) for how in ({"by": "pairs"}, {"rerank": 60}))
    shared = alone.keys() & last.keys()
    assert {key: alone[key] for key in shared} == {key: last[key] for key in shared}


@pytest.mark.slow
def test_candidates_of_another_model_are_used_and_recorded_in_the_results(coco):
    asked = {"mixed_galleries": (), "tasks": ("image_to_text",), "rerank": 5, "precision": "high"}
    both, cosines = (evaluate(model, **coco, **asked, candidates="demo:plain") for model in (Both(), Cosines()))
    assert figures(both) == figures(cosines) != figures(evaluate(Both(), **coco, **asked, by="pairs"))
    about, theirs = both["fingerprint"], load_encoder("demo:plain", compute=Compute("high")).describe()
    # Whatever the folder of the candidates is called.
    del theirs["name"]
    assert about["model"]["candidates"] == hash_json(theirs) and about["data"]["rococo"]["rerank"] == 5
    assert "rankings: plain chooses 5 candidates for every query by cosine similarity" in both["notes"]


def test_candidate_recall_of_a_subset_counts_only_its_queries(coco):
    outcome = dataclasses.replace(outcomes(Cosines(), coco)[0], has_candidate=np.arange(6) < 2)
    (rows,) = rows_of_outcomes([outcome], [np.arange(6) % 2 == 1])
    assert rows.on_unseen_images().counted.values()["candidate_recall"] == pytest.approx(100 / 3)


def test_each_distinct_pair_is_scored_once_and_a_larger_k_scores_only_new_pairs(coco, tmp_path):
    model, cache = Cosines(), tmp_path / "cache"
    first = evaluate(model, **coco, **RANKS, cache=cache)
    # Originals with all texts, four other sets with the original captions; a further call compares two batches.
    distinct = 6 * 60 + 4 * 6 * 30
    assert model.count == distinct + COMPARED
    assert evaluate(model, **coco, **RANKS, cache=cache) == first and model.count == distinct + COMPARED
    before = model.count
    evaluate(model, **coco, mixed_galleries=("patch_0.9",), seeds=(2,), cache=cache)
    assert before < model.count <= before + 2 * 6 * 30 + COMPARED


class OutOfMemory(Cosines):
    """No room for more than 10 pairs."""

    def score_pairs(self, images, texts):
        if len(texts) > 10:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return super().score_pairs(images, texts)


def test_batches_are_halved_if_memory_runs_out(coco, capsys):
    found = evaluate(OutOfMemory(), **coco, **RANKS)
    assert figures(found) == figures(evaluate(Cosines(), **coco, **RANKS))
    said = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert [line.split("continuing with ")[1] for line in said] == ["16 at once", "8 at once"]


def wrong(scores):
    return type("Wrong", (), {"name": "wrong", "score_pairs": lambda self, images, texts: scores(len(texts))})()


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (wrong(lambda count: np.full(count, np.nan)), {}, "score_pairs: found nan for 'a thing .* wanted finite"),
        (wrong(lambda count: np.zeros(count + 1)), {}, r"score_pairs: found shape \(33,\) .* wanted \(32,\), a number"),
        (wrong(lambda count: ["yes"] * count), {}, "score_pairs: found shape"),
        (wrong(lambda count: 1 / 0), {}, "score_pairs: found an error, ZeroDivisionError"),
        (Cosines(), {"rerank": 5}, "candidates: found none; wanted a model whose embeddings choose"),
        (Both(), {"rerank": 61}, "rerank: found 61; wanted at most 60, the largest gallery"),
        (Both(), {"by": "pairs", "rerank": 61}, "rerank: found 61; wanted at most 60"),
        (Hashed(), {"by": "pairs"}, "score_pairs: found none; wanted a model that scores pairs"),
        (Hashed(), {"rerank": 5}, "score_pairs: found none"),
        (Cosines(), {"image_size": 32}, "image_size: found 32; wanted none: the model's own library"),
    ],
)
def test_bad_input_is_reported_in_one_line(model, settings, message, coco):
    with pytest.raises(InputError, match=message) as error:
        evaluate(model, **coco, mixed_galleries=(), **settings)
    assert "\n" not in str(error.value)


class Instructed(Hashed):
    """The text's direction depends on the prompt."""

    prompt = ""

    def with_prompt(self, prompt, role):
        other = Instructed()
        other.prompt, other.name = f"{role} {prompt} ", "other"
        return other

    def encode_text(self, texts):
        return super().encode_text([self.prompt + text for text in texts])

    def encode_image(self, images):
        return super().encode_image(images) + super().encode_text([self.prompt])

    def fingerprint(self):
        return f"instructed {self.prompt}"


@pytest.mark.parametrize("task", ["image_to_text", "text_to_image"])
def test_query_and_document_prompts_are_added_to_their_sides(task, coco, tmp_path):
    asked = {"mixed_galleries": (), "tasks": (task,), "cache": tmp_path}

    class ByHand(Hashed):
        def encode_image(self, images):
            return Instructed().with_prompt(*sides[0]).encode_image(images)

        def encode_text(self, texts):
            return Instructed().with_prompt(*sides[1]).encode_text(texts)

        def fingerprint(self):
            return f"by hand {sides}"

    sides = [("find", "query"), ("file", "document")]
    sides = sides if task == "image_to_text" else sides[::-1]
    found = evaluate(Instructed(), **coco, **asked, query_prompt="find", document_prompt="file")
    assert figures(found) == figures(evaluate(ByHand(), **coco, **asked))
    assert figures(found) != figures(evaluate(Instructed(), **coco, **asked))
    assert "query prompt: 'find'" in found["notes"] and found["model"] == "hashed"
    assert found["fingerprint"]["model"]["prompts"] == hash_json({"query": "find", "document": "file"})


class Told(Cosines):
    """Pairs say the opposite under a prompt."""

    def with_prompt(self, prompt, role):
        return types.SimpleNamespace(score_pairs=Opposite().score_pairs)


def test_prompts_are_passed_to_pair_scorers(coco):
    opposite = figures(evaluate(Opposite(), **coco, mixed_galleries=(), by="pairs"))
    assert figures(evaluate(Told(), **coco, mixed_galleries=(), query_prompt="find")) == opposite


class Tokens:
    """Token vectors of images and texts, as many as their content says."""

    name = "tokens"

    @staticmethod
    def matrix(content: bytes) -> np.ndarray:
        random = np.random.default_rng(int.from_bytes(hashlib.sha256(content).digest()[:8], "big"))
        return random.standard_normal((random.integers(2, 13), 8)).astype(np.float32)

    def encode_image(self, images):
        return [self.matrix(image.tobytes()) for image in images]

    def encode_text(self, texts):
        return [self.matrix(text.encode()) for text in texts]

    def fingerprint(self):
        return "tokens"


class MaxSimByLoop(Tokens):
    """The same by a loop."""

    name, encode = "loop", Tokens()

    def score_pairs(self, images, texts):
        matrices = zip(self.encode.encode_image(images), self.encode.encode_text(texts), strict=True)
        return np.array([sum(max(word @ token for token in image) for word in text) for image, text in matrices])

    encode_image = encode_text = None


def test_token_embeddings_are_compared_by_maxsim(coco, tmp_path):
    found = evaluate(Tokens(), **coco, **RANKS, out=tmp_path / "a")
    expected = evaluate(MaxSimByLoop(), **coco, **RANKS, out=tmp_path / "b")
    assert figures(found) == figures(expected)
    ours, loop = (pq.read_table(tmp_path / folder / "per_query.parquet").to_pydict() for folder in "ab")
    np.testing.assert_allclose(ours["positive_score"], loop["positive_score"], rtol=1e-5)


@pytest.mark.parametrize("name", ["sugarcrepe", "winoground"])
def test_items_are_compared_by_maxsim(name, tmp_path):
    write(FORMS[name], tmp_path)
    folders = {"images": tmp_path / "images", "annotations": tmp_path}
    found, expected = (evaluate(model, **folders, out=tmp_path / model.name) for model in (Tokens(), MaxSimByLoop()))
    assert figures(found) == figures(expected)
    ours, loop = (pq.read_table(tmp_path / name / "per_query.parquet").to_pandas() for name in ("tokens", "loop"))
    numbers = loop.select_dtypes("floating").columns
    assert loop[numbers].notna().any().any()
    np.testing.assert_allclose(ours[numbers], loop[numbers], rtol=1e-4, atol=1e-5)


class Stops(Cosines):
    """Stops at a call."""

    calls = 0

    def score_pairs(self, images, texts):
        self.calls -= 1
        if self.calls == 0:
            raise KeyboardInterrupt
        return super().score_pairs(images, texts)


@pytest.mark.slow
def test_an_evaluation_stopped_anywhere_and_resumed_writes_the_same_files(coco, tmp_path, monkeypatch):
    monkeypatch.setattr(ScoresPairs, "images_at_once", 2)
    run = functools.partial(evaluate, **coco, **RANKS)
    run(Stops(), out=tmp_path / "whole")
    model, stops = Stops(), 0
    for calls in range(2, 30):
        model.calls = calls
        with contextlib.suppress(KeyboardInterrupt):
            run(model, out=tmp_path / "stopped", cache=tmp_path / "cache")
            break
        stops += 1
    assert stops > 3
    for file in sorted((tmp_path / "whole").iterdir()):
        assert (tmp_path / "stopped" / file.name).read_bytes() == file.read_bytes()


def test_two_processes_score_each_pair_once_and_agree_with_one(coco, monkeypatch):
    monkeypatch.setattr(ScoresPairs, "images_at_once", 2)
    whole, parts = evaluate(Cosines(), **coco, **RANKS), []

    def first_round(name, make):
        if name == "scoring pairs":
            parts.append(make())
            raise EOFError
        return [make()]

    monkeypatch.setattr(pairs, "broadcast_from_process_0", lambda name, make: make())
    monkeypatch.setattr(pairs, "gather", first_round)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for process in range(2):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        model = Cosines()
        with pytest.raises(EOFError):
            outcomes(model, coco)
        parts[process] = model.count, parts[process]
    monkeypatch.setattr(pairs, "gather", lambda name, make: [part for _, part in parts])
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    values = {(each.task, each.variant, each.seed): each.counted.values() for each in outcomes(Cosines(), coco)}
    assert sum(count for count, _ in parts) == 6 * 60 + 4 * 6 * 30 + 2 * COMPARED
    for (task, variant, _), metrics in values.items():
        assert metrics == {name: whole["tasks"][task][variant][name] for name in metrics}


def outcomes(model, coco):
    (benchmark,) = open_benchmarks(Settings(**RANKS), **coco)
    return pairs.outcomes_by_pairs(benchmark, ForeignModel(model), EmbeddingCache(None))


UNTOLD = Hashed(), Cosines(), Tokens(), "demo:plain"


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        *((model, {"query_prompt": "find"}, "query_prompt: found 'find'; wanted none") for model in UNTOLD),
        (Told(), {"document_prompt": "file"}, "document_prompt: found 'file'; wanted none"),
        (Instructed(), {"query_prompt": "find", "rerank": 5}, "rerank: found reranking and prompts"),
        *(
            (each(), {"candidates": "demo:plain"}, "rerank: found 0; wanted the number")
            for each in (Tokens, Told, Both)
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(model, settings, message, coco):
    with pytest.raises(InputError, match=message):
        evaluate(model, **coco, **settings)
