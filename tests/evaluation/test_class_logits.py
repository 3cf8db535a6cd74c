"""Logits in files: the figures of an evaluation, in one table with it; streaming; refusals."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ClassifyTask
from rococo_jax.cli.main import main
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.models.arrays import LogitsFile
from rococo_jax.evaluation.models.class_logits import score_logits
from rococo_jax.evaluation.results import (
    make_fingerprint,
    make_results,
    per_query_table,
    read_results,
    with_checksum,
    write_per_query,
)
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.metrics import class_statistics
from rococo_jax.storage import write_json

IMAGES, CLASSES = 90, ("cat", "dog", "eel", "fox", "gnu", "hen")
COLUMNS = [CLASSES[place] for place in (3, 1, 5, 0, 2, 4)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """An evaluated model, and its own logits in a file, columns in another order."""
    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    every, label = np.arange(IMAGES), np.arange(IMAGES) % len(CLASSES)
    texts = np.eye(len(CLASSES), 8, dtype=np.float32)
    images = texts[label] + 0.6 * rng.normal(size=(IMAGES, 8))
    images = (images / np.linalg.norm(images, axis=1, keepdims=True)).astype(np.float32)
    names = [f"{place}.jpg" for place in range(IMAGES)]
    prompts = np.arange(len(CLASSES))[:, None]
    task = ClassifyTask("pets", "clean", CLASSES, prompts, Rows.of(ORIGINALS, every), every, names, label)
    outcome = task.score(Embeddings({TEXTS: texts, ORIGINALS: images}, logit_scale=4.0))
    fingerprint = make_fingerprint(model={"weights": "w"}, data={"pets": {"labels": "x"}}, protocol="paper")
    results = make_results("evaluated", "paper", fingerprint, [outcome])
    tables = type("Tables", (), {"images": tuple(names), "texts": CLASSES})()
    write_json(folder / "evaluated" / "results.json", with_checksum(results))
    rows = [row_table("pets", each, tables) for each in rows_of_outcomes([outcome])]
    write_per_query(folder / "evaluated" / "per_query.parquet", per_query_table(rows))
    logits = 4.0 * (images.astype(np.float64) @ texts.T.astype(np.float64))[:, [*map(CLASSES.index, COLUMNS)]]
    assert not logits.flags.c_contiguous  # both orders are read
    np.savez(folder / "logits.npz", logits=logits, classes=COLUMNS, names=names)
    np.savez_compressed(folder / "packed.npz", logits=np.ascontiguousarray(logits), classes=COLUMNS)
    np.savez(folder / "fog.npz", logits=logits + rng.normal(size=logits.shape), classes=COLUMNS)
    np.savez(folder / "far.npz", logits=rng.normal(size=(40, len(CLASSES))))
    words = [CLASSES[each] for each in label]
    lines = [f"{name},{word}" for name, word in zip(names, words, strict=True)]
    (folder / "labels.csv").write_text("\n".join(["image,label", *lines]))
    return folder, results, logits


def write_labels(path, labels):
    """Write a table of images in the order of the logits, and the label of each."""
    rows = [f"{row}.jpg,{label}" for row, label in enumerate(labels)]
    path.write_text("\n".join(["image,label", *rows]))
    return path


def score(logits, labels, **options):
    return score_logits(str(logits), str(labels), **options)


def clean(evaluated) -> dict:
    return evaluated.results["tasks"]["classes"]["clean"]


def test_logits_give_the_metrics_of_the_evaluation(world):
    folder, results, _ = world
    metrics = score(folder / "logits.npz", folder / "labels.csv", task="pets", name="mine").results["tasks"]
    assert metrics["pets"]["clean"] == pytest.approx(results["tasks"]["pets"]["clean"], abs=1e-5)
    assert score(folder / "packed.npz", folder / "labels.csv", task="pets").results["tasks"] == metrics


def test_the_command_writes_results_and_rows_of_images(world, tmp_path):
    folder, _, _ = world
    command = ["score", "--logits", folder / "logits.npz", "--labels", folder / "labels.csv", "--task", "pets"]
    command += ["--out", tmp_path / "results.json", "--per-query", tmp_path / "per_query.parquet"]
    assert main([*map(str, command)]) == 0
    results = read_results(tmp_path / "results.json")
    assert results["model"] == "logits"
    counts = read_counts(tmp_path / "per_query.parquet", results)["pets", "clean"]
    rows = pq.read_table(tmp_path / "per_query.parquet").to_pylist()
    right = {row["image"]: row["chosen"] == "right" for row in rows}
    of_images = [100 * right[name] for name in counts.units]
    assert counts.of("top1", counts.on(counts.units)).tolist() == of_images
    assert counts.value("top1") == pytest.approx(results["tasks"]["pets"]["clean"]["top1"])


def test_labels_are_matched_by_image_name_whatever_their_order(world, tmp_path):
    folder, results, _ = world
    header, *rows = (folder / "labels.csv").read_text().split("\n")
    (tmp_path / "reversed.csv").write_text("\n".join([header, *reversed(rows), "extra.jpg,cat"]))
    metrics = clean(score(folder / "logits.npz", tmp_path / "reversed.csv"))
    assert metrics == pytest.approx(results["tasks"]["pets"]["clean"], abs=1e-5)


def test_logits_of_corrupted_and_out_of_distribution_images_are_scored(world):
    folder, _, _ = world
    corrupted, outside = {"fog_3": str(folder / "fog.npz")}, {"far": str(folder / "far.npz")}
    made, rows, *_ = score(folder / "logits.npz", folder / "labels.csv", corrupted=corrupted, outside=outside)
    assert set(made["tasks"]) == {"classes", "classes_ood"} and rows.num_rows == 3 * IMAGES + IMAGES + 40
    fog, top1 = made["tasks"]["classes"]["fog_3"], made["tasks"]["classes"]["clean"]["top1"]
    assert fog["ras"] < 0 and fog["drop_points"] == pytest.approx(top1 - fog["top1"])
    assert made["tasks"]["classes_ood"]["far"]["auroc_mcm"] > 50


def test_groups_have_the_mean_probability_of_their_classes(world, tmp_path):
    folder, _, logits = world
    groups = {"furry": ["cat", "dog", "fox", "gnu"], "other": ["eel", "hen"]}
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    coarse = ["image,label"]
    for line in (folder / "labels.csv").read_text().split("\n")[1:]:
        image, name = line.split(",")
        coarse.append(f"{image},{'other' if name in groups['other'] else 'furry'}")
    (tmp_path / "coarse.csv").write_text("\n".join(coarse))
    rows = score(folder / "logits.npz", tmp_path / "coarse.csv", groups=str(tmp_path / "groups.json")).per_query
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    means = np.stack([p[:, np.isin(COLUMNS, members)].mean(1) for members in groups.values()], 1)
    assert [[*groups][place] for place in means.argmax(1)] == rows.column("predicted").to_pylist()
    np.testing.assert_allclose(rows.column("confidence"), means.max(1) / means.sum(1), rtol=1e-9)


def test_blocks_of_a_large_file_are_never_in_memory_together(world, monkeypatch):
    folder, _, logits = world
    sizes, read = [], LogitsFile.block

    def watched(file, order, run):
        block = read(file, order, run)
        sizes.append(block.nbytes)
        return block

    monkeypatch.setattr(LogitsFile, "block", watched)
    monkeypatch.setattr(class_statistics, "NUMBERS_AT_ONCE", 60)
    score(folder / "logits.npz", folder / "labels.csv")
    assert max(sizes) == 60 * 8 < logits.nbytes / 8 and sum(sizes) >= logits.nbytes


def named(logits) -> dict:
    return {"logits": logits, "classes": COLUMNS}


@pytest.mark.parametrize(
    ("arrays_of", "labels", "said"),
    [
        (lambda z: named(np.where(np.arange(IMAGES)[:, None] == 7, np.nan, z)), "labels.csv", "logits of row 7"),
        (lambda z: named(z[:-1]), "labels.csv", "rows: found 89"),
        (lambda z: {"scores": z}, "labels.csv", "arrays: found scores"),
        (lambda z: {"logits": z.astype(int)}, "labels.csv", "numbers: found int64"),
        (lambda z: named(z) | {"names": ["x"] * IMAGES}, "labels.csv", "labels.csv: image: found no 'x'"),
        (None, "labels.csv", "contents"),
        (named, None, "--labels"),
        (named, ["yak", *["cat"] * (IMAGES - 1)], "yak"),
        (named, ["cat", "dog"] * (IMAGES // 2), "class 'eel': found no image"),
        (named, ["cat", "", "dog"], "item 1: label"),
        (named, "labels.txt", "labels: found a file .txt; wanted a table of image,label: .csv, .tsv or .jsonl"),
        (named, "evaluated", "labels: found a folder"),
    ],
)  # fmt: skip
def test_unusable_input_is_reported_in_one_line(world, tmp_path, refusal, arrays_of, labels, said):
    folder, _, logits = world
    wrong, out = tmp_path / "wrong.npz", tmp_path / "out" / "r.json"
    if arrays_of is None:
        wrong.write_bytes((folder / "logits.npz").read_bytes()[:900])
    else:
        np.savez(wrong, **arrays_of(logits))
    file = folder / "labels.csv"
    if isinstance(labels, str):
        file = folder / labels
    elif labels is not None:
        file = write_labels(tmp_path / "l.csv", labels)
    error = refusal("score", "--logits", wrong, *(() if labels is None else ("--labels", file)), "--out", out)
    assert said in error and error.count("\n") == 1 and not out.exists()


# Sorted as texts, the position of a column is not its name.
@pytest.mark.parametrize("classes", [sorted(map(str, range(12))), [f"c{place}" for place in range(12)], None])
def test_a_label_is_the_name_of_a_column(tmp_path, classes):
    """Expected by hand: the share of rows whose largest logit is that of their own class."""
    z, y = np.random.default_rng(1).normal(size=(60, 12)).astype("f4"), np.arange(60) % 12
    z[np.arange(60), y] += 2
    np.savez(tmp_path / "z.npz", logits=z, **({} if classes is None else {"classes": classes}))
    names = [(classes or [*map(str, range(12))])[place] for place in y]
    lines = [json.dumps({"image": f"{row}.jpg", "label": name}) for row, name in enumerate(names)]
    (tmp_path / "names.jsonl").write_text("\n".join(lines))
    for labels in (write_labels(tmp_path / "names.csv", names), tmp_path / "names.jsonl"):
        top1 = clean(score(tmp_path / "z.npz", labels))["top1"]
        assert top1 == pytest.approx(100 * np.mean(z.argmax(1) == y)), labels


def test_columns_of_several_files_and_their_labels_are_matched_by_name(world, tmp_path, refusal):
    """Take the file's own columns in any order from labels of `classes.json`; refuse another order elsewhere."""
    folder, results, _ = world
    (tmp_path / "classes.json").write_text(json.dumps({name: f"a {name}" for name in CLASSES}))
    found = score(folder / "logits.npz", folder / "labels.csv", classes=str(tmp_path / "classes.json"))
    assert clean(found)["top1"] == pytest.approx(results["tasks"]["pets"]["clean"]["top1"], abs=1e-5)
    fog = dict(np.load(folder / "fog.npz"))
    np.savez(tmp_path / "fog.npz", logits=fog["logits"][:, ::-1], classes=fog["classes"][::-1])
    words = ["--labels", folder / "labels.csv", "--corrupted", f"fog_3={tmp_path}/fog.npz", "--out", tmp_path / "r"]
    assert "classes: found others, or in another order" in refusal("score", "--logits", folder / "logits.npz", *words)
    (tmp_path / "l.csv").write_text((folder / "labels.csv").read_text().replace("image,label", "Filename, Label"))
    rows = score(folder / "logits.npz", tmp_path / "l.csv").per_query
    assert rows.column("image").to_pylist()[:2] == ["0.jpg", "1.jpg"]


def test_rows_without_names_and_unused_arrays_are_reported(world, tmp_path, capsys):
    folder, _, logits = world
    np.savez(tmp_path / "z.npz", **named(logits), image_names=np.arange(IMAGES))
    notes = score(tmp_path / "z.npz", folder / "labels.csv").results["notes"]
    assert "z.npz: arrays that are not read: image_names" in capsys.readouterr().err
    assert any("in the order of the labels" in note for note in notes)
    notes = score(folder / "logits.npz", folder / "labels.csv").results["notes"]
    assert capsys.readouterr().err == "" and not any("in the order of" in note for note in notes)


def equal_width_ece(p, label, bins=15):
    """Guo et al. 2017, by hand: bins (lo, hi], weighted by their share of the images; in percent."""
    sure, right = p.max(1), p.argmax(1) == label
    inside = [(sure > low / bins) & (sure <= (low + 1) / bins) for low in range(bins)]
    return 100 * sum(each.mean() * abs(right[each].mean() - sure[each].mean()) for each in inside if each.any())


def softmax(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def likely(classes, rows=300):
    """Return logits and labels of a model that is often right, and never as sure as it should be."""
    rng = np.random.default_rng(classes)
    label, z = np.arange(rows) % classes, rng.normal(size=(rows, classes))
    z[np.arange(rows), label] += 2
    return z, label


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("total", [1, 100])
def test_probabilities_instead_of_logits_are_refused(dtype, classes, total, tmp_path, refusal):
    """Their softmax is flatter than the model: every figure but the accuracy would be another one's."""
    z, label = likely(classes, 400)
    write_labels(tmp_path / "y.csv", label)
    np.save(tmp_path / "z.npy", z)
    np.savez(tmp_path / "p.npz", logits=(total * softmax(z)).astype(dtype))
    where = ["--labels", tmp_path / "y.csv", "--out", tmp_path / "out.json"]
    for files in (["p.npz"], ["z.npy", "--corrupted", "fog_3=p.npz"], ["z.npy", "--out-logits", "far=p.npz"]):
        logits, *more = (str(tmp_path / each) if each == "p.npz" else each for each in files)
        more = [each.replace("p.npz", str(tmp_path / "p.npz")) for each in more]
        error = refusal("score", "--logits", tmp_path / logits, *more, *where)
        assert "p.npz: logits: found probabilities" in error and f"sums to {total};" in error
        assert "or log-probabilities" in error and not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("classes", [2, 10])
def test_log_probabilities_are_accepted_as_logits(classes, tmp_path):
    z, label = likely(classes)
    write_labels(tmp_path / "y.csv", label)
    forms = {"logits": z, "shifted": z + 7, "log-probabilities": np.log(softmax(z))}
    for name, values in forms.items():
        np.save(tmp_path / "z.npy", values)
        numbers = clean(score(tmp_path / "z.npy", tmp_path / "y.csv"))
        p = softmax(z)[np.arange(len(label)), label]
        assert numbers["ece"] == pytest.approx(equal_width_ece(softmax(z), label), abs=1e-9), name
        assert numbers["nll"] == pytest.approx(-np.log(p).mean(), rel=1e-9), name


def rounded_to_bfloat16(values):
    return ((values.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda z: softmax(z)[:, :20], "probabilities or cosines: all numbers are between"),
        (lambda z: softmax(z).round(2), "probabilities"),
        (lambda z: (100 * softmax(2 * z)).round(1), "probabilities in percent"),
        (lambda z: 100 * softmax(4 * z)[:, :20], "percentages: all numbers are between"),
        (lambda z: rounded_to_bfloat16(softmax(z)), "probabilities"),
        (lambda z: 1 / (1 + np.exp(-z)), "probabilities or cosines: all numbers are between"),
        (lambda z: 100 / (1 + np.exp(-3 * z)), "percentages: all numbers are between"),
        (lambda z: 0.2 + z / 40, "probabilities or cosines: all numbers are between"),
        (lambda z: np.vstack([softmax(z)[1:], z[:1]]), "and 299 of 300 rows sum to 1"),
    ],
)
def test_probabilities_in_other_forms_are_refused(form, said, tmp_path, refusal):
    z, label = likely(100)
    values = form(z)
    write_labels(tmp_path / "y.csv", label % values.shape[1])
    np.save(tmp_path / "z.npy", values)
    where = ["--labels", tmp_path / "y.csv", "--out", tmp_path / "out.json"]
    error = refusal("score", "--logits", tmp_path / "z.npy", *where)
    assert f"z.npy: logits: found {said}" in error or ("logits: found probabilities" in error and said in error)
    assert "wanted logits as they are before the softmax" in error


@pytest.mark.parametrize(
    "form",
    [lambda z: z.round(3), lambda z: 2 * z + 30, lambda z: z - z.min(), lambda z: np.log(softmax(z))],
)
def test_logits_of_any_range_are_accepted_without_a_note(form, tmp_path):
    """Softmax ignores a constant: logits may be all positive, as CLIP's are, and may be rounded."""
    z, label = likely(10)
    write_labels(tmp_path / "y.csv", label)
    np.save(tmp_path / "z.npy", form(z))
    results = score(tmp_path / "z.npy", tmp_path / "y.csv").results
    assert results["tasks"]["classes"]["clean"]["ece"] == pytest.approx(equal_width_ece(softmax(form(z)), label))
    assert not any("cosines" in note for note in results["notes"])


def test_a_note_reports_cosines_without_the_scale_of_the_model(tmp_path):
    z, label = likely(10)
    write_labels(tmp_path / "y.csv", label)
    np.save(tmp_path / "z.npy", z / 10)
    notes = score(tmp_path / "z.npy", tmp_path / "y.csv").results["notes"]
    assert any("multiply them by the model's logit scale" in note for note in notes)


def test_masked_classes_are_never_predicted(tmp_path, refusal):
    """Logits of many classes with -inf outside of those of the labels equal the logits of these columns alone."""
    z, label = likely(10)
    write_labels(tmp_path / "y.csv", label)
    wide = np.full((len(z), 40), -np.inf, np.float32)
    wide[:, :10] = z
    np.save(tmp_path / "wide.npy", wide)
    np.save(tmp_path / "z.npy", wide[:, :10])
    masked, alone = (score(tmp_path / name, tmp_path / "y.csv").results for name in ("wide.npy", "z.npy"))
    assert masked["tasks"] == alone["tasks"]
    assert any("30 of 40 classes left out: their logits are -inf for every image" in each for each in masked["notes"])
    # In some rows only: the softmax, and everything that depends on it, is that of the other classes.
    some = z.copy()
    some[::3, [1, 2]] = np.where(label[::3, None] == [1, 2], some[::3, [1, 2]], -np.inf)
    np.save(tmp_path / "z.npy", some)
    metrics = clean(score(tmp_path / "z.npy", tmp_path / "y.csv"))
    assert metrics["ece"] == pytest.approx(equal_width_ece(softmax(some), label))
    assert metrics["nll"] == pytest.approx(-np.log(softmax(some)[np.arange(len(z)), label]).mean())
    where = ["--labels", tmp_path / "y.csv", "--out", tmp_path / "out.json"]
    some[4, label[4]] = -np.inf
    np.save(tmp_path / "z.npy", some)
    error = refusal("score", "--logits", tmp_path / "z.npy", *where)
    assert "z.npy: logits of row 4: found -inf for '4', the class of its label" in error
    np.save(tmp_path / "wide.npy", np.nan_to_num(wide, neginf=-9.0))
    error = refusal("score", "--logits", tmp_path / "wide.npy", *where)
    assert "no image, as for 30 of 40 classes; wanted" in error and "are -inf in every row" in error


def test_labels_can_be_positions_of_named_columns(world, tmp_path):
    folder, results, _ = world
    header, *rows = (folder / "labels.csv").read_text().split("\n")
    numbered = [f"{row.split(',')[0]},{COLUMNS.index(row.split(',')[1])}" for row in rows]
    (tmp_path / "numbers.csv").write_text("\n".join([header, *numbered]))
    scored = score(folder / "logits.npz", tmp_path / "numbers.csv")
    assert clean(scored) == pytest.approx(results["tasks"]["pets"]["clean"], abs=1e-5)
    assert "the labels are positions of the columns of the logits, from 0" in scored.results["notes"]
