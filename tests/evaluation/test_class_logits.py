"""Logits in files: the figures of an evaluation, in one table with it; streaming; refusals."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ClassifyTask
from rococo_jax.cli.main import main
from rococo_jax.evaluation.models.class_logits import score_logits
from rococo_jax.evaluation.per_image import read_image_hits
from rococo_jax.evaluation.results import (
    make_fingerprint,
    make_results,
    per_query_table,
    with_checksum,
    write_per_query,
)
from rococo_jax.metrics import class_statistics as statistics_module
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.storage import write_json

IMAGES, CLASSES = 90, ("cat", "dog", "eel", "fox", "gnu", "hen")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """An evaluated model, and its own logits in a file, columns in another order."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    label = np.arange(IMAGES) % len(CLASSES)
    texts = np.eye(len(CLASSES), 8, dtype=np.float32)
    images = texts[label] + 0.6 * rng.normal(size=(IMAGES, 8))
    images = (images / np.linalg.norm(images, axis=1, keepdims=True)).astype(np.float32)
    names = [f"{place}.jpg" for place in range(IMAGES)]
    every = np.arange(IMAGES)
    prompts = np.arange(len(CLASSES))[:, None]
    task = ClassifyTask("pets", "clean", CLASSES, prompts, Rows.of(ORIGINALS, every), every, names, label)
    outcome = task.score(Embeddings({TEXTS: texts, ORIGINALS: images}, logit_scale=4.0))
    fingerprint = make_fingerprint(model={"weights": "w"}, data={"pets": {"labels": "x"}}, protocol="paper")
    results = make_results("evaluated", "paper", fingerprint, [outcome])
    tables = type("Tables", (), {"images": tuple(names), "texts": CLASSES})()
    write_json(folder / "evaluated" / "results.json", with_checksum(results))
    write_per_query(folder / "evaluated" / "per_query.parquet", per_query_table([outcome.rows(tables)]))
    order = [3, 1, 5, 0, 2, 4]
    logits = 4.0 * (images.astype(np.float64) @ texts.T.astype(np.float64))[:, order]
    columns = np.array(CLASSES)[order]
    np.savez(folder / "logits.npz", logits=logits, classes=columns, names=np.array(names))
    assert not logits.flags.c_contiguous  # both orders are read
    np.savez_compressed(folder / "packed.npz", logits=np.ascontiguousarray(logits), classes=columns)
    noisy = logits + rng.normal(size=logits.shape)
    np.savez(folder / "fog.npz", logits=noisy, classes=columns)
    np.savez(folder / "far.npz", logits=rng.normal(size=(40, len(CLASSES))))
    lines = "".join(f"{name},{CLASSES[each]}\n" for name, each in zip(names, label.tolist(), strict=True))
    (folder / "labels.csv").write_text("image,label\n" + lines)
    (folder / "labels.txt").write_text("".join(CLASSES[each] + "\n" for each in label.tolist()))
    return folder, results, logits


def test_logits_say_what_the_evaluation_said(world):
    folder, results, _ = world
    made = score_logits(str(folder / "logits.npz"), str(folder / "evaluated"), task="pets", name="mine").results
    for name, value in results["tasks"]["pets"]["clean"].items():
        assert made["tasks"]["pets"]["clean"][name] == pytest.approx(value, abs=1e-5), name
    for source in ("packed.npz", "logits.npz"):
        other = score_logits(str(folder / source), str(folder / "labels.csv"), task="pets").results
        assert other["tasks"] == made["tasks"]


def test_both_stand_in_one_table(world, tmp_path):
    folder, _, _ = world
    out = tmp_path / "mine" / "results.json"
    command = ["score", "--logits", folder / "logits.npz", "--labels", folder / "evaluated", "--task", "pets"]
    assert (
        main([*map(str, command), "--out", str(out), "--per-query", str(tmp_path / "mine" / "per_query.parquet")]) == 0
    )
    (group,) = group_by_fingerprint(load_results([folder / "evaluated", out]))
    assert [run.label for run in group.runs] == ["evaluated", "logits"]
    hits = read_image_hits(tmp_path / "mine" / "per_image.parquet")["pets", "clean"]["top1"]
    rows = pq.read_table(tmp_path / "mine" / "per_query.parquet").to_pylist()
    assert dict(zip(hits.images, hits.hits, strict=True)) == {row["image"]: row["chosen"] == "right" for row in rows}


def test_corruptions_and_other_images_come_the_same_way(world):
    folder, _, _ = world
    corrupted, outside = {"fog_3": str(folder / "fog.npz")}, {"far": str(folder / "far.npz")}
    logits, labels = str(folder / "logits.npz"), str(folder / "labels.txt")
    made, rows, *_ = score_logits(logits, labels, corrupted=corrupted, outside=outside)
    assert set(made["tasks"]) == {"classes", "classes_ood"} and rows.num_rows == 3 * IMAGES + IMAGES + 40
    fog = made["tasks"]["classes"]["fog_3"]
    assert fog["ras"] < 0 and fog["drop_points"] == pytest.approx(
        made["tasks"]["classes"]["clean"]["top1"] - fog["top1"]
    )
    assert made["tasks"]["classes_ood"]["far"]["auroc_mcm"] > 50


def test_groups_have_the_mean_probability_of_their_classes(world, tmp_path):
    folder, _, logits = world
    groups = {"furry": ["cat", "dog", "fox", "gnu"], "other": ["eel", "hen"]}
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    coarse = ["furry" if name in groups["furry"] else "other" for name in (folder / "labels.txt").read_text().split()]
    (tmp_path / "coarse.txt").write_text("\n".join(coarse) + "\n")
    coarse_labels, of_groups = str(tmp_path / "coarse.txt"), str(tmp_path / "groups.json")
    rows = score_logits(str(folder / "logits.npz"), coarse_labels, groups=of_groups).per_query
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    columns = np.array(CLASSES)[[3, 1, 5, 0, 2, 4]]
    means = np.stack([p[:, np.isin(columns, groups[name])].mean(1) for name in ("furry", "other")], 1)
    assert [["furry", "other"][place] for place in means.argmax(1)] == rows.column("predicted").to_pylist()
    np.testing.assert_allclose(rows.column("confidence"), means.max(1) / means.sum(1), rtol=1e-9)


def test_blocks_of_a_large_file_are_never_held_together(world, monkeypatch):
    folder, _, logits = world
    whole = score_logits(str(folder / "logits.npz"), str(folder / "labels.txt")).results
    sizes = []
    read = statistics_module._measured

    def watched(z, *rest):
        sizes.append(z.nbytes)
        return read(z, *rest)

    monkeypatch.setattr(statistics_module, "_measured", watched)
    monkeypatch.setattr(statistics_module, "NUMBERS_AT_ONCE", 60)
    small = score_logits(str(folder / "logits.npz"), str(folder / "labels.txt")).results
    assert max(sizes) == 60 * 8 < logits.nbytes / 8 and sum(sizes) == logits.nbytes
    assert small["tasks"]["classes"]["clean"]["top1"] == whole["tasks"]["classes"]["clean"]["top1"]
    assert small["tasks"]["classes"]["clean"]["nll_scaled"] == pytest.approx(
        whole["tasks"]["classes"]["clean"]["nll_scaled"], rel=1e-6
    )


def with_nan(logits):
    return np.where(np.arange(IMAGES)[:, None] == 7, np.nan, logits)


def refused(capsys, tmp_path, logits, *labels) -> str:
    """The one line in which the command refuses its input."""
    out = tmp_path / "out" / "r.json"
    assert main(["score", "--logits", str(logits), *map(str, labels), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and not out.exists()
    return error


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (lambda z: {"logits": with_nan(z), "classes": CLASSES}, "logits of row 7"),
        (lambda z: {"logits": z[:-1], "classes": CLASSES}, "rows: found 89"),
        (lambda z: {"scores": z}, "arrays: found scores"),
        (lambda z: {"logits": z.astype(int)}, "numbers: found int64"),
        (lambda z: {"logits": z, "classes": CLASSES, "names": ["x"] * IMAGES}, "names: found other images"),
        (None, "contents"),
    ],
)
def test_logits_that_cannot_be_used_are_one_line(world, tmp_path, capsys, arrays, said):
    folder, _, logits = world
    (tmp_path / "wrong.npz").write_bytes((folder / "logits.npz").read_bytes()[:900])
    if arrays is not None:
        np.savez(tmp_path / "wrong.npz", **arrays(logits))
    assert said in refused(capsys, tmp_path, tmp_path / "wrong.npz", "--labels", folder / "labels.csv")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("yak\n" + "cat\n" * (IMAGES - 1), "yak"),
        ("cat\ndog\n" * (IMAGES // 2), "class 'eel': found no image"),
        ("cat\n\ndog\n", "line 2"),
        (None, "--labels"),
    ],
)
def test_labels_that_cannot_be_used_are_one_line(world, tmp_path, capsys, labels, said):
    (tmp_path / "l.txt").write_text(labels or "")
    words = [] if labels is None else ["--labels", tmp_path / "l.txt"]
    assert said in refused(capsys, tmp_path, world[0] / "logits.npz", *words)


def test_a_whole_number_is_the_place_of_a_column_and_a_text_its_name(tmp_path):
    """Expected by hand: the share of rows whose largest logit is that of their own class."""
    rng = np.random.default_rng(1)
    y = np.arange(60) % 12
    z = rng.normal(size=(60, 12)).astype("f4")
    z[np.arange(60), y] += 2
    expected = 100 * np.mean(z.argmax(1) == y)
    # Sorted as texts, the place of a column is not its name.
    named = {"digits": sorted(map(str, range(12))), "words": [f"c{place}" for place in range(12)], "none": None}
    for kind, classes in named.items():
        file = tmp_path / f"{kind}.npz"
        np.savez(file, logits=z, **({} if classes is None else {"classes": classes}))
        names = [str(place) for place in range(12)] if classes is None else classes
        np.save(tmp_path / "places.npy", y)
        np.save(tmp_path / "names.npy", np.array([names[place] for place in y]))
        (tmp_path / "places.jsonl").write_text("".join(json.dumps({"label": int(place)}) + "\n" for place in y))
        (tmp_path / "names.jsonl").write_text("".join(json.dumps({"label": names[place]}) + "\n" for place in y))
        (tmp_path / "names.csv").write_text("label\n" + "".join(f"{names[place]}\n" for place in y))
        for labels in ("places.npy", "names.npy", "places.jsonl", "names.jsonl", "names.csv"):
            top1 = score_logits(str(file), str(tmp_path / labels)).results["tasks"]["classes"]["clean"]["top1"]
            assert top1 == pytest.approx(expected), (kind, labels)


def test_numbers_that_may_be_places_or_names_are_refused(tmp_path, capsys):
    z = np.eye(3, dtype="f4")
    for classes, y, said in (
        (np.array([6, 11, 13]), np.array([0, 1, 2]), "beside classes that are whole numbers in another order"),
        (
            np.array(["a", "b", "c"]),
            np.array([0, 1, 3]),
            "label of row 2: found 3; wanted the place of a column, 0 to 2",
        ),
        (np.array(["a", "b", "c"]), np.array([0.0, 1, 2]), "labels: found float64"),
    ):
        np.savez(tmp_path / "z.npz", logits=z, classes=classes)
        np.save(tmp_path / "y.npy", y)
        assert said in refused(capsys, tmp_path, tmp_path / "z.npz", "--labels", tmp_path / "y.npy")


def test_columns_of_several_files_and_their_labels_are_matched_by_name(world, tmp_path, capsys):
    """Labels of `classes.json` name the file's own columns in any order; another order elsewhere is refused."""
    folder, results, _ = world
    expected = results["tasks"]["pets"]["clean"]["top1"]
    (tmp_path / "classes.json").write_text(json.dumps({name: f"a {name}" for name in CLASSES}))
    found = score_logits(str(folder / "logits.npz"), str(folder / "labels.csv"), classes=str(tmp_path / "classes.json"))
    assert found.results["tasks"]["classes"]["clean"]["top1"] == pytest.approx(expected, abs=1e-5)
    fog = dict(np.load(folder / "fog.npz"))
    np.savez(tmp_path / "fog.npz", logits=fog["logits"][:, ::-1], classes=fog["classes"][::-1])
    words = ["--labels", folder / "labels.csv", "--corrupted", f"fog_3={tmp_path}/fog.npz"]
    assert "classes: found others, or in another order" in refused(capsys, tmp_path, folder / "logits.npz", *words)
    (tmp_path / "l.csv").write_text((folder / "labels.csv").read_text().replace("image,label", "Filename, Label"))
    rows = score_logits(str(folder / "logits.npz"), str(tmp_path / "l.csv")).per_query
    assert rows.column("image").to_pylist()[:2] == ["0.jpg", "1.jpg"]


def test_rows_without_names_and_arrays_that_are_not_read_are_said(world, tmp_path, capsys):
    folder, _, logits = world
    np.savez(
        tmp_path / "z.npz", logits=logits, image_names=np.arange(IMAGES), classes=np.load(folder / "fog.npz")["classes"]
    )
    notes = score_logits(str(tmp_path / "z.npz"), str(folder / "labels.csv")).results["notes"]
    assert "z.npz: arrays that are not read: image_names" in capsys.readouterr().err
    assert any("in the order of the labels" in note for note in notes)
    notes = score_logits(str(folder / "logits.npz"), str(folder / "labels.csv")).results["notes"]
    assert capsys.readouterr().err == "" and not any("in the order of" in note for note in notes)
