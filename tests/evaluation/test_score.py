"""`rococo score`: the published definitions on numbers that any framework may have made, and what it refuses."""

import json
import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest

from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import read_results
from rococo_jax.metrics.grounding import METRICS as GROUNDING
from rococo_jax.metrics.retrieval import METRICS

# A prime below 2^22: products of distinct numbers modulo it are distinct, and three times 2^22 is exact in float32.
PRIME, STEP = 4_194_301, 2**22


def write_annotation(path, images, with_six=0):
    """The published form: 5 originals and 5 altered captions; the first `with_six` images have 6 and 5."""
    items = []
    for image in range(images):
        originals = [f"Caption {k} of {image}." for k in range(6 if image < with_six else 5)]
        altered = [f"caption {k} of {image} altered" for k in range(5)]
        items.append({"image": f"val/{image}.jpg", "caption": originals + altered})
    path.write_text(json.dumps(items))
    return items


def columns_of(items):
    """The image of each column, and whether it is altered, by the lengths of the lists alone."""
    lengths = [len(item["caption"]) for item in items]
    owner = np.repeat(np.arange(len(items)), lengths)
    place = np.concatenate([np.arange(length) for length in lengths])
    originals = np.repeat([{10: 5, 11: 6}[length] for length in lengths], lengths)
    return owner, place >= originals


def tie_free_scores(owner, altered, images):
    """Random scores that are distinct within each row and each column, own captions often among the first."""
    generator = np.random.default_rng(0)
    rows, columns = (1 + generator.choice(PRIME - 1, count, replace=False) for count in (images, len(owner)))
    scores = np.empty((images, len(owner)), np.float32)
    for image in range(images):
        scores[image] = rows[image] * columns % PRIME
    own = np.flatnonzero(generator.random(len(owner)) < np.where(altered, 0.25, 0.5))
    scores[owner[own], own] += STEP
    strangers = 4 * images
    row, column = generator.integers(0, images, strangers), generator.integers(0, len(owner), strangers)
    free = np.unique(row * len(owner) + column)
    row, column = free // len(owner), free % len(owner)
    elsewhere = owner[column] != row
    scores[row[elsewhere], column[elsewhere]] += STEP
    return scores


def image_to_text_by_sorting(scores, owner, altered):
    """The published way: sort, reverse, look up the own originals; in percent. With and without altered captions."""
    found = {"clean": ([], []), "same_concept": ([], [])}
    for image, row in enumerate(scores):
        order = np.argsort(row)[::-1]
        # Nothing ties, so leaving altered captions out of the sorted list is sorting without them.
        for name, listed in (("clean", order[~altered[order]]), ("same_concept", order)):
            ranks, kinds = found[name]
            ranks.append(np.flatnonzero((owner[listed] == image) & ~altered[listed])[0])
            top = listed[0]
            kinds.append(("own" if owner[top] == image else "other") + ("_altered" if altered[top] else ""))
    return {name: metrics_by_hand(np.array(ranks), kinds) for name, (ranks, kinds) in found.items()}


def metrics_by_hand(ranks, kinds):
    metrics = {f"r{cutoff}": 100 * np.mean(ranks < cutoff) for cutoff in (1, 5, 10)}
    metrics["r_mean"] = sum(metrics.values()) / 3
    for kind in ("own", "own_altered", "other_altered", "other"):
        metrics[f"top1_{kind}"] = 100 * kinds.count(kind) / len(kinds)
    metrics["fr1"] = metrics["top1_own_altered"] + metrics["top1_other_altered"]
    return metrics


def text_to_image_by_sorting(scores, owner, altered):
    ranks = []
    for columns in np.array_split(np.flatnonzero(~altered), 50):
        order = np.argsort(np.ascontiguousarray(scores[:, columns].T), axis=1)[:, ::-1]
        ranks.append((order == owner[columns, None]).argmax(axis=1))
    ranks = np.concatenate(ranks)
    return {f"r{cutoff}": 100 * np.mean(ranks < cutoff) for cutoff in (1, 5, 10)}


@pytest.mark.parametrize("images", [500, pytest.param(5000, marks=pytest.mark.thorough)])
def test_score_equals_the_published_definitions(images, tmp_path):
    items = write_annotation(tmp_path / "same_concept.json", images, with_six=10)
    owner, altered = columns_of(items)
    scores = tie_free_scores(owner, altered, images)
    assert scores.shape == (images, 10 * images + 10)
    np.save(tmp_path / "S.npy", scores)
    expected = image_to_text_by_sorting(scores, owner, altered)
    of_text = text_to_image_by_sorting(scores, owner, altered)
    for protocol in ("paper", "strict"):
        found = score(tmp_path, "--similarities", tmp_path / "S.npy", "--protocol", protocol)
        for variant, metrics in expected.items():
            for name, value in metrics.items():
                assert found["image_to_text"][variant][name] == pytest.approx(value, abs=1e-9), (variant, name)
        for name, value in of_text.items():
            assert found["text_to_image"]["clean"][name] == pytest.approx(value, abs=1e-9)
        clean, same = (found["image_to_text"][variant]["r1"] for variant in ("clean", "same_concept"))
        assert found["image_to_text"]["same_concept"]["drop"] == pytest.approx(100 * (clean - same) / clean)
    assert 5 < same < clean < 95
    assert 5 < found["image_to_text"]["same_concept"]["fr1"] < 95


def score(folder, *options, annotation="same_concept.json", out="F.json"):
    """Runs the command and returns the tasks of its results, checked."""
    arguments = ["score", *map(str, options), "--annotation", str(folder / annotation), "--out", str(folder / out)]
    assert main(arguments) == 0
    return read_results(folder / out)["tasks"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Forty images, two of them with six captions; embeddings in whole numbers, and their similarities."""
    folder = tmp_path_factory.mktemp("small")
    owner, _ = columns_of(write_annotation(folder / "same_concept.json", 40, with_six=2))
    generator = np.random.default_rng(0)
    images = generator.standard_normal((40, 12)).astype(np.float32)
    texts = (images[owner] + 0.8 * generator.standard_normal((len(owner), 12))).astype(np.float32)
    np.save(folder / "A.npy", images)
    np.save(folder / "B.npy", texts)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts)]
    np.save(folder / "S.npy", unit[0] @ unit[1].T)
    return folder


def with_embeddings(folder):
    return "--image-embeddings", folder / "A.npy", "--text-embeddings", folder / "B.npy"


def test_embeddings_score_as_their_similarities_and_are_brought_to_unit_length(small):
    expected = score(small, "--similarities", small / "S.npy")
    assert score(small, *with_embeddings(small), out="E.json") == expected
    notes = read_results(small / "E.json")["notes"]
    assert [note.split(":")[0] for note in notes if "brought to length 1" in note] == ["A.npy", "B.npy"]


def test_unit_embeddings_are_taken_as_they_are(small, tmp_path):
    for name in ("A.npy", "B.npy"):
        rows = np.load(small / name)
        np.save(tmp_path / name, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    score(small, *with_embeddings(tmp_path), out="U.json")
    assert read_results(small / "U.json")["notes"] == []


def test_results_name_what_they_depend_on(small):
    score(small, "--similarities", small / "S.npy", "--name", "mine", "--protocol", "strict")
    results = read_results(small / "F.json")
    assert (results["model"], results["protocol"]) == ("mine", "strict")
    assert list(results["tasks"]) == ["image_to_text", "text_to_image"]
    assert list(results["tasks"]["image_to_text"]) == ["clean", "same_concept"]
    assert {metric.name for metric in METRICS} <= set(results["tasks"]["image_to_text"]["clean"])
    assert set(results["intervals"]["image_to_text"]["same_concept"]) == {
        *(metric.name for metric in (*METRICS, *GROUNDING)),
        "drop",
        "drop_points",
    }
    sizes = results["sizes"]["image_to_text"]
    pairs = sizes["same_concept"]["gallery"] - sizes["clean"]["gallery"]
    assert sizes["same_concept"] == {"queries": 40, "gallery": 402, "images": 40, "pairs": pairs}
    assert set(results["fingerprint"]) == {"model", "data", "protocol", "versions", "comparable"}


def test_only_the_model_may_differ_between_comparable_results(small, tmp_path):
    fingerprints = []
    np.save(tmp_path / "other.npy", np.load(small / "S.npy") * 2)
    for path, protocol in ((small / "S.npy", "paper"), (tmp_path / "other.npy", "paper"), (small / "S.npy", "strict")):
        score(small, "--similarities", path, "--protocol", protocol)
        fingerprints.append(read_results(small / "F.json")["fingerprint"])
    assert fingerprints[0]["comparable"] == fingerprints[1]["comparable"] != fingerprints[2]["comparable"]
    assert fingerprints[0]["model"] != fingerprints[1]["model"]


def test_the_same_input_gives_the_same_bytes(small):
    score(small, *with_embeddings(small), "--per-query", small / "one.parquet", out="one.json")
    score(small, *with_embeddings(small), "--per-query", small / "two.parquet", out="two.json")
    assert (small / "one.json").read_bytes() == (small / "two.json").read_bytes()
    assert (small / "one.parquet").read_bytes() == (small / "two.parquet").read_bytes()


def test_one_row_a_query_says_who_came_first(small):
    found = score(small, "--similarities", small / "S.npy", "--per-query", small / "Q.parquet")
    table = pq.read_table(small / "Q.parquet")
    assert table.column_names == [
        "task", "variant", "seed", "query", "image", "caption", "rank", "rank_optimistic", "rank_pessimistic",
        "top1_kind", "top1_text", "top1_score", "positive_score",
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


def test_a_constant_scorer_scores_nothing_under_strict(small, tmp_path):
    np.save(tmp_path / "S.npy", np.zeros((40, 402), np.float32))
    found = score(small, "--similarities", tmp_path / "S.npy", "--protocol", "strict")
    for task, variant in (("image_to_text", "clean"), ("image_to_text", "same_concept"), ("text_to_image", "clean")):
        metrics = found[task][variant]
        assert [metrics[name] for name in ("r1", "r5", "r10", "r_mean", "top1_own")] == [0] * 5
    assert found["image_to_text"]["same_concept"]["drop"] is None


@pytest.mark.parametrize("convert", [np.float16, np.float64, np.asfortranarray])
def test_other_precisions_and_the_order_of_columns_are_read(small, tmp_path, convert):
    scores = convert(np.load(small / "S.npy"))
    np.save(tmp_path / "S.npy", scores)
    np.save(tmp_path / "W.npy", np.ascontiguousarray(scores, np.float64))
    found = score(small, "--similarities", tmp_path / "S.npy")
    assert found == score(small, "--similarities", tmp_path / "W.npy")


def test_plain_captions_give_the_clean_tasks_alone(small, tmp_path):
    items = [{"image": f"{k}.jpg", "caption": [f"caption {k} {j}" for j in range(5)]} for k in range(8)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    np.save(tmp_path / "S.npy", np.random.default_rng(0).random((8, 40)))
    found = score(tmp_path, "--similarities", tmp_path / "S.npy", annotation="captions.json")
    assert {task: list(variants) for task, variants in found.items()} == {
        "image_to_text": ["clean"],
        "text_to_image": ["clean"],
    }


def test_strict_leaves_out_altered_captions_that_change_nothing(tmp_path):
    item = {"image": "a.jpg", "originals": ["A dog.", "A cat."], "altered": ["a dog", "a car"]}
    other = {"image": "b.jpg", "originals": ["One."], "altered": [None]}
    (tmp_path / "own.json").write_text(json.dumps([item, other]))
    # The no-op scores highest: it fools the model under `paper` and is not there under `strict`.
    np.save(tmp_path / "S.npy", np.array([[3.0, 2.0, 4.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]))
    found = {
        protocol: score(tmp_path, "--similarities", tmp_path / "S.npy", "--protocol", protocol, annotation="own.json")
        for protocol in ("paper", "strict")
    }
    assert [found[protocol]["image_to_text"]["own"]["fr1"] for protocol in found] == [50, 0]


# What is refused: one line that names the file, exit 2, and nothing written.


def refused(capsys, folder, *options, annotation=None):
    annotation = annotation or folder / "same_concept.json"
    out = folder / "never.json"
    assert main(["score", *map(str, options), "--annotation", str(annotation), "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("rococo: ")
    assert not out.exists()
    return message


def with_value(rows, place, value):
    changed = rows.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda scores: scores[:, :-2], "shape: found (40, 400); wanted (40, 402) for (images, captions) of the ann"),
        (lambda scores: with_value(scores, (3, 5), np.nan), "scores: found NaN or infinite values"),
        (lambda scores: with_value(scores, (3, 5), np.inf), "scores: found NaN or infinite values"),
        (lambda scores: scores.astype(np.int64), "numbers: found int64"),
        (lambda scores: scores[0], "shape: found (402,); wanted two dimensions"),
    ],
)
def test_similarities_that_do_not_fit_are_refused(capsys, small, tmp_path, change, said):
    np.save(tmp_path / "S.npy", change(np.load(small / "S.npy")))
    options = "--similarities", tmp_path / "S.npy", "--per-query", tmp_path / "Q.parquet"
    assert f"S.npy: {said}" in refused(capsys, small, *options)
    assert not (tmp_path / "Q.parquet").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: with_value(rows, 17, np.nan), "row 17: found NaN or infinite values"),
        (lambda rows: with_value(rows, 17, 0.0), "row 17: found a vector of zeros"),
        (lambda rows: rows[:, 1:], "shape: found (402, 11); wanted (402, 12)"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(capsys, small, tmp_path, change, said):
    np.save(tmp_path / "B.npy", change(np.load(small / "B.npy")))
    options = "--image-embeddings", small / "A.npy", "--text-embeddings", tmp_path / "B.npy"
    assert f"B.npy: {said}" in refused(capsys, small, *options)


def test_pickled_objects_are_never_loaded(capsys, small, tmp_path):
    class Touches:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    objects = np.empty((40, 402), object)
    objects[0, 0] = Touches()
    np.save(tmp_path / "S.npy", objects, allow_pickle=True)
    assert "found Python objects" in refused(capsys, small, "--similarities", tmp_path / "S.npy")
    (tmp_path / "P.npy").write_bytes(pickle.dumps(Touches()))
    assert "wanted a .npy file" in refused(capsys, small, "--similarities", tmp_path / "P.npy")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("contents", [b"", b"not an array", b"\x93NUMPY\x01\x00v\x00", None])
def test_what_is_no_whole_npy_file_is_refused(capsys, small, tmp_path, contents):
    (tmp_path / "S.npy").write_bytes((small / "S.npy").read_bytes()[:5000] if contents is None else contents)
    assert "S.npy: contents: found" in refused(capsys, small, "--similarities", tmp_path / "S.npy")


def test_missing_files_are_named(capsys, small, tmp_path):
    gone = tmp_path / "gone.npy"
    assert f"{gone}: file: found nothing there" in refused(capsys, small, "--similarities", gone)
    missing = tmp_path / "gone.json"
    message = refused(capsys, small, "--similarities", small / "S.npy", annotation=missing)
    assert f"{missing}: file: found nothing there" in message


def test_lists_of_nine_captions_are_refused(capsys, small, tmp_path):
    items = json.loads((small / "same_concept.json").read_text())
    items[7]["caption"] = items[7]["caption"][:9]
    (tmp_path / "short.json").write_text(json.dumps(items))
    message = refused(capsys, small, "--similarities", small / "S.npy", annotation=tmp_path / "short.json")
    assert "item 7" in message and "found 9 captions" in message


def test_one_kind_of_input_is_wanted(capsys, small):
    for options in ((), ("--image-embeddings", "A.npy"), ("--similarities", "S.npy", "--text-embeddings", "B.npy")):
        assert "wanted either --similarities, or --image-embeddings and" in refused(capsys, small, *options)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda results: results.pop("tasks"), "'tasks'"),
        (lambda results: results["tasks"]["image_to_text"]["clean"].update(r1=101.0), "r1"),
        (lambda results: results["tasks"]["image_to_text"]["clean"].update(fr1=None), "fr1"),
        (lambda results: results.update(model=3), "'model'"),
    ],
)
def test_results_that_were_changed_by_hand_are_refused(small, tmp_path, change, field):
    score(small, "--similarities", small / "S.npy")
    results = json.loads((small / "F.json").read_text())
    change(results)
    (tmp_path / "F.json").write_text(json.dumps(results))
    with pytest.raises(InputError, match=field):
        read_results(tmp_path / "F.json")
