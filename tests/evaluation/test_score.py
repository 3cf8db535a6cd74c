"""`rococo score`: the published definitions on numbers that any framework may have made, and what it refuses."""

import io
import json
import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.probabilities import check_similarities
from rococo_jax.evaluation.results import read_results
from rococo_jax.metrics.grounding import METRICS as GROUNDING
from rococo_jax.metrics.retrieval import METRICS
from tests.support.refusals import refused

# A prime below 2^22: products of distinct numbers modulo it are distinct, and three times 2^22 is exact in float32.
PRIME, STEP = 4_194_301, 2**22
TASKS = ("image_to_text", "text_to_image")
ASKED = (("image_to_text", "clean"), ("image_to_text", "same_concept"), ("text_to_image", "clean"))


def write_annotation(path, images, with_six):
    """The published form, 5 originals and 5 altered captions, of the first images 6 and 5; owner and kind of each."""
    counts = [6 if image < with_six else 5 for image in range(images)]
    texts = [[f"Caption {k} of {image}." for k in range(count)] for image, count in enumerate(counts)]
    texts = [originals + [f"caption {k} of {image} altered" for k in range(5)] for image, originals in enumerate(texts)]
    path.write_text(json.dumps([{"image": f"val/{image}.jpg", "caption": each} for image, each in enumerate(texts)]))
    altered = np.concatenate([np.arange(len(each)) >= count for each, count in zip(texts, counts, strict=True)])
    return np.repeat(np.arange(images), [len(each) for each in texts]), altered


def tie_free_scores(owner, altered, images):
    """Random scores that are distinct within each row and each column, own captions often among the first."""
    rng, scores = np.random.default_rng(0), np.empty((images, len(owner)), np.float32)
    rows, columns = (1 + rng.choice(PRIME - 1, count, replace=False) for count in scores.shape)
    for image in range(images):
        chance = np.where(owner == image, np.where(altered, 0.25, 0.5), 4 / len(owner))
        scores[image] = rows[image] * columns % PRIME + STEP * (rng.random(len(owner)) < chance)
    return scores


def sorted_by_numpy(scores, right):
    """The published way: sort, reverse, look up; of each row the place of the first right column, and the top one."""
    orders = (np.argsort(row)[::-1] for row in np.ascontiguousarray(scores))
    return np.array([(hits[order].argmax(), order[0]) for order, hits in zip(orders, right, strict=True)]).T


def published(scores, owner, altered, variant):
    """Metrics in percent; nothing ties."""
    if variant == "clean":
        scores, owner, altered = scores[:, ~altered], owner[~altered], altered[~altered]
    image = np.arange(len(scores))
    places, top = sorted_by_numpy(scores, (owner == image[:, None]) & ~altered)
    metrics = {f"r{cutoff}": np.mean(places < cutoff) for cutoff in (1, 5, 10)}
    metrics["r_mean"] = sum(metrics.values()) / 3
    own, fooled = owner[top] == image, altered[top]
    metrics |= {"top1_own": np.mean(own & ~fooled), "top1_own_altered": np.mean(own & fooled)}
    metrics |= {"top1_other": np.mean(~own & ~fooled), "top1_other_altered": np.mean(~own & fooled)}
    return {name: 100 * value for name, value in metrics.items()} | {"fr1": 100 * np.mean(fooled)}


@pytest.mark.parametrize("images", [200, pytest.param(5000, marks=pytest.mark.thorough)])
def test_scores_follow_the_published_definitions(images, tmp_path):
    owner, altered = write_annotation(tmp_path / "same_concept.json", images, with_six=10)
    scores = tie_free_scores(owner, altered, images)
    assert scores.shape == (images, 10 * images + 10)
    np.save(tmp_path / "S.npy", scores)
    expected = {asked: published(scores, owner, altered, asked[1]) for asked in ASKED[:2]}
    own = owner[~altered, None] == np.arange(images)
    places, _ = sorted_by_numpy(scores[:, ~altered].T, own)
    expected[ASKED[2]] = {f"r{cutoff}": 100 * np.mean(places < cutoff) for cutoff in (1, 5, 10)}
    for protocol in ("paper", "strict"):
        found = score(tmp_path, "--similarities", tmp_path / "S.npy", "--protocol", protocol)
        for (task, variant), metrics in expected.items():
            assert {name: found[task][variant][name] for name in metrics} == pytest.approx(metrics, abs=1e-9)
        clean, same = (found["image_to_text"][variant]["r1"] for variant in ("clean", "same_concept"))
        assert found["image_to_text"]["same_concept"]["drop"] == pytest.approx(100 * (clean - same) / clean)
    assert 5 < same < clean < 95
    assert 5 < found["image_to_text"]["same_concept"]["fr1"] < 95


def score(folder, *options, annotation="same_concept.json", out="F.json"):
    """Run the command and return the tasks of its results, checked."""
    arguments = ["score", *map(str, options), "--annotation", str(folder / annotation), "--out", str(folder / out)]
    assert main(arguments) == 0
    return read_results(folder / out)["tasks"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Forty images, two of them with six captions; embeddings of any length, and their similarities."""
    folder, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(0)
    owner, _ = write_annotation(folder / "same_concept.json", 40, with_six=2)
    images = rng.standard_normal((40, 12)).astype(np.float32)
    texts = (images[owner] + 0.8 * rng.standard_normal((len(owner), 12))).astype(np.float32)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts)]
    for name, rows in {"A": images, "B": texts, "uA": unit[0], "uB": unit[1], "S": unit[0] @ unit[1].T}.items():
        np.save(folder / f"{name}.npy", rows)
    return folder


def test_results_record_their_conditions_and_only_the_model_may_differ_if_comparable(small, tmp_path):
    np.save(tmp_path / "other.npy", np.load(small / "S.npy") * 2)
    fingerprints = []
    for path, protocol in ((small / "S.npy", "paper"), (tmp_path / "other.npy", "paper"), (small / "S.npy", "strict")):
        found = score(small, "--similarities", path, "--protocol", protocol, "--name", "mine")
        results = read_results(small / "F.json")
        fingerprints.append(results["fingerprint"])
        assert (results["model"], results["protocol"]) == ("mine", protocol)
    assert fingerprints[0]["comparable"] == fingerprints[1]["comparable"] != fingerprints[2]["comparable"]
    assert fingerprints[0]["model"] != fingerprints[1]["model"]
    assert {"model", "data", "protocol", "versions", "comparable"} == fingerprints[2].keys() - {"flags"}
    assert [(task, variant) for task, variants in found.items() for variant in variants] == [*ASKED]
    names = {metric.name for metric in METRICS}
    assert names <= set(found["image_to_text"]["clean"])
    names |= {metric.name for metric in GROUNDING} | {"drop", "drop_points"}
    assert set(results["intervals"]["image_to_text"]["same_concept"]) == names
    sizes = results["sizes"]["image_to_text"]
    pairs = sizes["same_concept"]["gallery"] - sizes["clean"]["gallery"]
    assert sizes["same_concept"] == {"queries": 40, "gallery": 402, "images": 40, "pairs": pairs}


def test_the_same_input_gives_the_same_bytes(small):
    for name in ("one", "two"):
        score(small, "--similarities", small / "S.npy", "--per-query", small / f"{name}.parquet", out=f"{name}.json")
    for suffix in ("json", "parquet"):
        assert (small / f"one.{suffix}").read_bytes() == (small / f"two.{suffix}").read_bytes()


def test_each_query_has_a_row_that_names_the_first_item(small):
    found = score(small, "--similarities", small / "S.npy", "--per-query", small / "Q.parquet")
    table = pq.read_table(small / "Q.parquet")
    assert table.column_names == [
        "benchmark", "task", "variant", "part", "alteration", "corruption", "severity", "seed", "unit",
        "query", "image", "caption", "rank", "rank_optimistic", "rank_pessimistic",
        "top1_kind", "top1_text", "top1_score", "positive_score",
        "r1", "r5", "r10", "top1_own", "top1_own_altered", "top1_other_altered", "top1_other", "hubness",
        "pairs", "preference", "blind", "grounding", "difference_r1",
    ]  # fmt: skip
    rows = [row for row in table.to_pylist() if (row["task"], row["variant"]) == ("image_to_text", "same_concept")]
    captions = [text for item in json.loads((small / "same_concept.json").read_text()) for text in item["caption"]]
    scores = np.load(small / "S.npy")
    assert [row["top1_text"] for row in rows] == [captions[column] for column in scores.argmax(axis=1)]
    assert [row["top1_score"] for row in rows] == pytest.approx(scores.max(axis=1).tolist(), abs=0)
    assert 100 * np.mean([row["rank"] == 1 for row in rows]) == found["image_to_text"]["same_concept"]["r1"]
    of_text = [row for row in table.to_pylist() if row["task"] == "text_to_image"]
    assert len(of_text) == 202
    assert {row["top1_text"] for row in of_text} <= {f"val/{image}.jpg" for image in range(40)}


def test_a_constant_scorer_has_zero_recall_under_the_strict_protocol(small, tmp_path):
    np.save(tmp_path / "S.npy", np.zeros((40, 402), np.float32))
    found = score(small, "--similarities", tmp_path / "S.npy", "--protocol", "strict")
    for task, variant in ASKED:
        assert [found[task][variant][name] for name in ("r1", "r5", "r10", "r_mean", "top1_own")] == [0] * 5
    assert found["image_to_text"]["same_concept"]["drop"] is None


@pytest.mark.parametrize("convert", [np.float16, np.float64, np.asfortranarray])
def test_other_precisions_and_the_order_of_columns_are_read(small, tmp_path, convert):
    scores = convert(np.load(small / "S.npy"))
    np.save(tmp_path / "S.npy", scores)
    np.save(tmp_path / "W.npy", np.ascontiguousarray(scores, np.float64))
    found, wanted = (score(small, "--similarities", tmp_path / name) for name in ("S.npy", "W.npy"))
    assert found == wanted


def test_plain_captions_give_only_the_clean_tasks(small, tmp_path):
    items = [{"image": f"{k}.jpg", "caption": [f"caption {k} {j}" for j in range(5)]} for k in range(8)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    np.save(tmp_path / "S.npy", np.random.default_rng(0).random((8, 40)))
    found = score(tmp_path, "--similarities", tmp_path / "S.npy", annotation="captions.json")
    assert {task: [*variants] for task, variants in found.items()} == {task: ["clean"] for task in TASKS}


def test_the_strict_protocol_excludes_altered_captions_that_change_nothing(tmp_path):
    item = {"image": "a.jpg", "originals": ["A dog.", "A cat."], "altered": ["a dog", "a car"]}
    other = {"image": "b.jpg", "originals": ["One."], "altered": [None]}
    (tmp_path / "own.json").write_text(json.dumps([item, other]))
    # The no-op scores highest: it fools the model under `paper` and is not there under `strict`.
    np.save(tmp_path / "S.npy", np.array([[3.0, 2.0, 4.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]))
    for protocol, fooled in (("paper", 50), ("strict", 0)):
        options = "--similarities", tmp_path / "S.npy", "--protocol", protocol
        assert score(tmp_path, *options, annotation="own.json")["image_to_text"]["own"]["fr1"] == fooled


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_value(rows, place, value) -> bytes:
    changed = rows.copy()
    changed[place] = value
    return npy(changed)


@pytest.mark.parametrize(
    ("content_of", "said"),
    [
        (lambda s: npy(s[:, :-2]), "shape: found (40, 400); wanted (40, 402) for (images, captions) of the ann"),
        (lambda s: with_value(s, (3, 5), np.nan), "scores: found NaN or infinite values"),
        (lambda s: with_value(s, (3, 5), np.inf), "scores: found NaN or infinite values"),
        (lambda s: npy(s.astype(np.int64)), "numbers: found int64"),
        (lambda s: npy(s[0]), "shape: found (402,); wanted two dimensions"),
        (lambda s: b"", "contents: found"),
        (lambda s: b"not an array", "contents: found"),
        (lambda s: b"\x93NUMPY\x01\x00v\x00", "contents: found"),
        (lambda s: npy(s)[:5000], "contents: found"),
    ],
)
def test_arrays_of_wrong_shapes_are_refused_in_one_line(small, tmp_path, refusal, content_of, said):
    wrong = tmp_path / "S.npy"
    wrong.write_bytes(content_of(np.load(small / "S.npy")))
    outputs = "--per-query", tmp_path / "Q.parquet", "--out", tmp_path / "never.json"
    error = refusal("score", "--similarities", wrong, "--annotation", small / "same_concept.json", *outputs)
    assert error.startswith(f"rococo: {wrong}: {said}") and error.count("\n") == 1
    assert [*tmp_path.iterdir()] == [wrong]


def test_similarities_after_a_softmax_are_refused(small, tmp_path, refusal):
    """Detect a softmax: it keeps the order along one axis and changes that along the other."""
    scores = np.load(small / "S.npy").astype(float)
    scores = 10 * scores / scores.max()
    over_captions = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    over_images = np.exp(scores) / np.exp(scores).sum(0)
    forms = {"probabilities over the captions of an image": over_captions,
             "probabilities over the images of a caption": over_images.astype(np.float32),
             "logarithms of probabilities over the captions of an image": np.log(over_captions)}  # fmt: skip
    where = "--annotation", small / "same_concept.json", "--out", tmp_path / "never.json"
    for form, values in {**forms, "probabilities over the captions": 100 * over_captions}.items():
        np.save(tmp_path / "P.npy", values)
        error = refusal("score", "--similarities", tmp_path / "P.npy", *where)
        assert f"P.npy: similarities: found {form}" in error and not (tmp_path / "never.json").exists()
    # Rounded, in percent with one digit, and of logarithms with two.
    for values in (over_captions.round(4), (100 * over_captions).round(1), np.log(over_images).round(2)):
        np.save(tmp_path / "P.npy", values)
        assert "probabilities over the" in refusal("score", "--similarities", tmp_path / "P.npy", *where)
    # Scores of pairs that are judged one by one, such as of a matching head, have no such sum; nor has a perfect model.
    for values in (1 / (1 + np.exp(-scores)), (scores == scores.max(1, keepdims=True)).astype(float)):
        np.save(tmp_path / "P.npy", values)
        assert score(small, "--similarities", tmp_path / "P.npy")


def noisy_cosines(images, noise):
    """Return cosines of images with five captions each, which are the image's vector with noise."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(images, 64))
    captions = np.repeat(vectors, 5, axis=0) + noise * rng.normal(size=(5 * images, 64))
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (vectors, captions)]
    return 0.2 + 0.2 * unit[0] @ unit[1].T


def test_part_of_a_softmax_is_refused_and_a_possible_one_is_noted():
    """The softmax was over twice as many captions as the benchmark has, so rows sum to less than 1."""
    cosines = noisy_cosines(200, 2.0)
    softmax = np.exp(100 * cosines) / np.exp(100 * cosines).sum(1, keepdims=True)
    for values in (softmax[:, :500], softmax[:, :500].round(3), np.log(softmax[:, :500])):
        with pytest.raises(InputError, match="probabilities over the captions of an image"):
            check_similarities(values, "S.npy")
    flat = np.exp(20 * cosines) / np.exp(20 * cosines).sum(1, keepdims=True)
    note, *_ = check_similarities(flat[:, :500], "S.npy")
    assert "the captions of an image sum to at most 1" in note


@pytest.mark.parametrize("images", [2, 3, 10, 200])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_cosines_and_logits_and_probabilities_of_pairs_are_accepted_as_similarities(images, noise):
    cosines = noisy_cosines(images, noise)
    sigmoids = 1 / (1 + np.exp(-(200 * cosines - 60)))
    for values in (cosines, cosines.round(3), 100 * cosines, (100 * cosines).round(1), sigmoids, sigmoids.round(3),
                   cosines - 0.3, np.log(sigmoids), cosines.astype(np.float16), 400 * cosines - 150):  # fmt: skip
        check_similarities(values, "S.npy")


def test_pickled_objects_are_never_loaded(small, tmp_path, refusal):
    class Touches:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    objects = np.empty((40, 402), object)
    objects[0, 0] = Touches()
    np.save(tmp_path / "S.npy", objects, allow_pickle=True)
    (tmp_path / "P.npy").write_bytes(pickle.dumps(Touches()))
    more = "--annotation", small / "same_concept.json", "--out", tmp_path / "never.json"
    for name, said in (("S.npy", "found Python objects"), ("P.npy", "wanted a .npy file")):
        assert said in refusal("score", "--similarities", tmp_path / name, *more)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("options", "annotation", "said"),
    [
        ("--similarities gone.npy", "same_concept.json", "gone.npy: file: found nothing there"),
        ("--similarities S.npy", "gone.json", "gone.json: file: found nothing there"),
        ("--similarities S.npy", "nine.json", "nine.json: caption list of item 7 ('val/7.jpg'): found 9 captions"),
        ("", "same_concept.json", "--annotation: found it alone; wanted it with --similarities"),
        ("--embeddings E.npz", "same_concept.json", "--annotation: found it alone; wanted it with --similarities"),
        (
            "--similarities S.npy --data D",
            "same_concept.json",
            "--annotation: found also --data; wanted one of the two",
        ),
    ],
)
def test_invalid_input_is_refused_in_one_line(small, monkeypatch, refusal, options, annotation, said):
    monkeypatch.chdir(small)
    items = json.loads((small / "same_concept.json").read_text())
    items[7]["caption"].pop()
    (small / "nine.json").write_text(json.dumps(items))
    error = refusal("score", *options.split(), "--annotation", annotation, "--out", "never.json")
    assert said in error and error.count("\n") == 1 and not (small / "never.json").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda results: results.pop("tasks"), "'tasks'"),
        (lambda results: results["tasks"]["image_to_text"]["clean"].update(r1=101.0), "r1: found 101.0"),
        (lambda results: results["tasks"]["image_to_text"]["clean"].update(r1=-1.0), "r1: found -1.0"),
        (lambda results: results["tasks"]["image_to_text"]["clean"].update(fr1=None), "fr1"),
        (lambda results: results.update(model=3), "'model'"),
    ],
)
def test_results_that_were_changed_by_hand_are_refused(small, tmp_path, change, field):
    score(small, "--similarities", small / "S.npy")
    results = json.loads((small / "F.json").read_text())
    change(results)
    (tmp_path / "F.json").write_text(json.dumps(results))
    refused(field, read_results, tmp_path / "F.json")
