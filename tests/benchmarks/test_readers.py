"""Every reader of choices on a small file in the published form, and one table of bad input over all of them."""

import copy
import csv
import dataclasses
import hashlib
import io
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.benchmarks.audit import audit
from rococo_jax.benchmarks.benchmark import find_benchmark, known_benchmarks, recognise, with_corrupted_images
from rococo_jax.benchmarks.pair_scores import MatrixScores
from rococo_jax.benchmarks.readers.plain_choices import as_json
from rococo_jax.benchmarks.readers.scam import TEMPLATES
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import make_results
from rococo_jax.metrics.intervals import image_draws
from tests.benchmarks.published_forms import FORMS, pack, write
from tests.support.cases import further
from tests.support.random_inputs import embeddings_of
from tests.support.refusals import refused
from tests.support.world import noise, write_pictures

READERS = sorted(FORMS)


def open_form(name, folder, **settings):
    info = find_benchmark(name)
    return info.open({"images": folder / "images", "annotations": folder}, Settings(**settings))


def write_rows(name, folder, rows, **changes):
    """A form with other rows, each a change of its first, and other fields."""
    first = FORMS[name].rows[0]
    form = dataclasses.replace(FORMS[name], rows=[first | row for row in rows], **changes)
    write(form, folder)


def item(number, part, *images, texts=("one", "two"), match=((0, 0),)):
    """An item in the plain form; an image is a file, or a file and a box."""
    images = [{"file": each} if isinstance(each, str) else dict(zip(("file", "box"), each, strict=True))
              for each in images]  # fmt: skip
    return {"id": str(number), "part": part, "images": images, "texts": list(texts), "match": list(match)}


def test_every_reader_has_a_test_form():
    assert set(FORMS) == {info.name for info in known_benchmarks().values() if info.reader is not None}


@pytest.mark.parametrize("name", READERS)
def test_the_published_form_is_converted_to_items(name, tmp_path):
    write(FORMS[name], tmp_path)
    assert find_benchmark(name).recognises(tmp_path)
    benchmark = open_form(name, tmp_path)
    assert {task.variant: task.match.shape[1:] for task in benchmark.tasks} == FORMS[name].shapes
    assert all(task.name == name for task in benchmark.tasks) and set(benchmark.images) == set(FORMS[name].images)
    embeddings, same = embeddings_of(benchmark), embeddings_of(benchmark, lambda shape: np.full(shape, 0.5))
    for task in benchmark.tasks:
        outcome = task.score(embeddings)
        assert outcome.rows(benchmark).num_rows == len(task.ids) == outcome.sizes["items"]
        assert all(0 <= value <= 100 for value in outcome.counted.values().values())
        assert all(value == 100 * (key == "ties") for key, value in task.score(same).counted.values().items())
    for images in benchmark.image_sets.values():
        assert [image.mode for image in images.read(range(len(images)))] == ["RGB"] * len(images)


@pytest.mark.parametrize("name", further(READERS, READERS[::3]))
def test_the_plain_form_gives_the_same_items(name, tmp_path):
    write(FORMS[name], tmp_path / "published")
    info = find_benchmark(name)
    tables, _, records = info.reader.read(tmp_path / "published", info.files)
    assert records == (1 if name == "mmvp" else len(FORMS[name].rows))  # whose lines are pairs
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(as_json(item)) + "\n" for item in tables.items()))
    folders = {"images": tmp_path / "published" / "images", "annotations": tmp_path}
    plain = find_benchmark("choices").open(folders, Settings())
    published = open_form(name, tmp_path / "published")
    assert plain.texts == published.texts and plain.images == published.images
    for one, other in zip(plain.tasks, published.tasks, strict=True):
        assert (list(one.ids), one.variant) == (list(other.ids), other.variant)
        for field in ("item_images", "item_texts", "match", "group", "templates", "resampled_by"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        assert one.bundles.keys() == other.bundles.keys()
        for how, bundled in one.bundles.items():
            np.testing.assert_array_equal(bundled.number, other.bundles[how].number)
            np.testing.assert_array_equal(bundled.sizes, other.bundles[how].sizes)


def bad_input(name):
    """(label, change of the rows, what the line must say) for every kind of bad input that a form can have."""
    form = FORMS[name]

    def set_field(field, value):
        return lambda rows: rows[0].__setitem__(field, value)

    yield "empty file", lambda rows: rows.clear(), "wanted"
    yield "empty text", set_field(form.text_field, " "), f"{form.text_field}"
    if form.file.endswith(".csv") or not isinstance(form.text_field, str) or name == "imagecode":
        drop = form.text_field if isinstance(form.text_field, str) else -1
        if name != "imagecode":
            yield "missing field", lambda rows: [row.pop(drop) for row in rows], "found"
    else:
        yield "missing field", lambda rows: rows[0].pop(form.text_field), f"{form.text_field}: found nothing"
    if not form.file.endswith(".csv"):
        yield "wrong type", set_field(form.text_field, 7), f"{form.text_field}: found"
        yield "record of the wrong type", lambda rows: rows.__setitem__(0, 7), "found a number"
    if form.image_field is not None and not form.last_part:
        yield "image outside the folder", set_field(form.image_field, "../a.jpg"), "inside the image folder"
    if form.image_field is not None:
        yield "image that is not there", set_field(form.image_field, "none.jpg"), "missing"
    if form.box is not None:
        yield "box outside its image", set_field(form.box, 999), "of 40 x 30 pixels"
        yield "box without area", set_field(form.box, 0), "left < right"
    if form.id_field is not None:
        yield "an id that is no id", set_field(form.id_field, True), "a string or a whole number"
        yield "duplicate ids", lambda rows: rows.append(copy.deepcopy(rows[0])), "the id twice"


BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")


@pytest.mark.parametrize("box", [(-3, -2, 20, 18), (25, 20, 15, 19), (-5, -5, 60, 50)])
def test_a_box_that_crosses_the_border_is_clipped_as_in_the_published_code(box, tmp_path):
    write_rows("aro", tmp_path, [dict(zip(BOX, box, strict=True))])
    Image.new("RGBA", (40, 30), (200, 0, 0, 255)).save(tmp_path / "images" / "7.jpg", "PNG")
    crop = next(open_form("aro", tmp_path).image_sets["crops"].read([0]))
    # As in ARO's code: `.convert("RGB")`, then `.crop`.
    x, y, width, height = box
    expected = Image.open(tmp_path / "images" / "7.jpg").convert("RGB").crop((x, y, x + width, y + height))
    np.testing.assert_array_equal(np.asarray(crop), np.asarray(expected))


@pytest.mark.parametrize("box", [(-30, 3, 20, 18), (2, 40, 9, 9), (-99, -99, 220, 220)])
def test_a_box_whose_centre_is_outside_of_the_image_is_refused(box, tmp_path):
    write_rows("aro", tmp_path, [dict(zip(BOX, box, strict=True))])
    refused("of 40 x 30 pixels; wanted a box with its centre inside the image", open_form, "aro", tmp_path)


CASES = [pytest.param(name, *case[1:], id=f"{name}: {case[0]}") for name in READERS for case in bad_input(name)]


@pytest.mark.parametrize(("name", "change", "said"), CASES)
def test_bad_input_is_reported_in_one_line(name, change, said, tmp_path):
    write(FORMS[name], tmp_path, change)
    refused(re.escape(said), open_form, name, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"match": [[0, 0], [2, 1]]}, "pairs [image, text] of existing positions"),
        ({"match": [[0, 0, 1]]}, "wanted pairs [image, text]"),
        ({"match": []}, "found no pair"),
        ({"match": [[0, 0], [0, 1], [1, 0], [1, 1]]}, "found every pair"),
        ({"match": 3}, "match: found a number"),
        ({"images": []}, "images: found none"),
        ({"images": [{"file": "a.jpg", "box": [1, 2, 99, 9]}, {"file": "b.jpg"}]}, "of 40 x 30 pixels"),
        ({"images": [{"file": "a.jpg", "box": [1, 2, 9]}, {"file": "b.jpg"}]}, "[left, top, right, bottom]"),
        ({"images": [{"file": "../a.jpg"}, {"file": "b.jpg"}]}, "inside the image folder"),
        ({"texts": ["one", 2]}, "texts 1: found 2"),
        ({"templates": ["a {}", "no place"]}, "templates: found 'no place'; wanted templates with {} once"),
        ({"templates": []}, "templates: found []"),
        ({"scene": " "}, "scene: found ' '"),
    ],
)
def test_inconsistent_plain_items_are_refused(change, said, tmp_path):
    write_rows("choices", tmp_path, [change])
    refused(f"item.*{re.escape(said)}", open_form, "choices", tmp_path)


def test_all_questions_of_a_part_are_of_one_kind(tmp_path):
    write_rows("choices", tmp_path, [{}, item("y", "mine", "a.jpg")])
    refused("one kind of question in a part", open_form, "choices", tmp_path)
    write_rows("choices", tmp_path, [{}, {"id": "y", "templates": ["a {}."]}])
    refused("the same templates in all items of a part", open_form, "choices", tmp_path)


def test_items_of_several_sizes_are_padded(tmp_path):
    texts = {size: [f"{size} {t}" for t in range(size)] for size in (2, 4, 3)}
    items = [item(size, "mine", "a.jpg", texts=each, match=[(0, 1)]) for size, each in texts.items()]
    write_rows("choices", tmp_path, items)
    (task,) = open_form("choices", tmp_path).tasks
    assert task.item_texts.shape == (3, 4) and (task.item_texts < 0).sum() == 3
    texts = np.eye(9, 4)
    texts[task.item_texts[:, 1]] = 1.0  # the right text of each item
    outcome = task.score(Embeddings({"originals": np.ones((1, 4)), TEXTS: texts}))
    assert outcome.counted.values() == {"ota": 100.0, "ties": 0.0}
    assert np.isnan(outcome.scores.scores).sum() == 3


def test_results_of_each_part_have_a_mean_over_kinds_of_corruption(tmp_path):
    files = tuple(f"{number}.png" for number in range(12))
    write_rows("choices", tmp_path, [item(n, "few" if n < 4 else "many", files[n]) for n in range(12)], images=files)
    benchmark = with_corrupted_images(open_form("choices", tmp_path), ["fog", "snow", "frost"], [3])
    made = make_results("one", "paper", {}, [task.score(embeddings_of(benchmark)) for task in benchmark.tasks])
    variants = made["tasks"]["choices"]
    for part in ("few", "many"):
        of_kinds = [variants[f"{part}/{kind}_3"] for kind in ("fog", "snow", "frost")]
        assert len({each["ota"] for each in of_kinds}) > 1
        mean = variants[f"{part}/corruptions_3"]
        for metric in ("ota", "drop_points", "ras", "consistency"):
            assert mean[metric] == pytest.approx(np.mean([each[metric] for each in of_kinds]))
        assert made["intervals"]["choices"][f"{part}/corruptions_3"]["drop_points"] is not None
    of_kinds = [f"few/{kind}_3" for kind in ("fog", "snow", "frost")]
    assert made["variants"]["choices"]["few/corruptions_3"] == {
        "part": "few", "corruption": "corruptions", "severity": 3, "baseline": "few/uncorrupted", "pooling": "kinds",
        "kind": "choice",
        "of": of_kinds,
    }  # fmt: skip


def test_a_limit_takes_items_of_every_part_in_turn(tmp_path):
    names = [
        (f"{part}{number}", part) for part, count in (("many", 5), ("few", 2), ("some", 3)) for number in range(count)
    ]
    items = [item(name, part, f"{name}a.png", f"{name}b.png", match=[(0, 0), (1, 1)]) for name, part in names]
    write_rows("choices", tmp_path, items, images=tuple(f"{name}{side}.png" for name, _ in names for side in "ab"))
    for limit, ids in ((8, ["many0", "many1", "few0", "some0"]), (20, [name for name, _ in names])):
        found = open_form("choices", tmp_path, limit=limit)
        assert [one for task in found.tasks for one in task.ids] == ids and len(found.images) == limit
        coverage = {"present": 20, "wanted": 20, "complete": limit == 20} | ({"limit": 8} if limit == 8 else {})
        assert found.data["coverage"] == coverage
        expected = (
            "limit: 8 of 20 images were selected, in turns from each class or part: items without their images are"
        )
        assert [note.removesuffix(" left out") for note in found.notes if "limit" in note] == [expected] * (limit == 8)
        assert not any("present" in note for note in found.notes)


def test_rows_of_parts_of_images_are_named_after_the_images_that_they_are_cut_from(tmp_path):
    """A row is of one set: row 1 of the crops is no row 1 of the images, whatever the shapes of the two."""
    files, box, other = tuple(f"{number}.png" for number in range(4)), [0, 0, 8, 8], [2, 2, 9, 9]
    pictures = {
        "whole": files,
        "once": [(file, box) for file in files[:3]],  # rows 0, 1, 2 of the crops, of images 0, 1, 2
        "twice": [(file, each) for file in files[2:] for each in ([1, 1, 8, 8], other)],
    }
    names = {part: [each if part == "whole" else each[0] for each in images] for part, images in pictures.items()}
    items = [
        item(f"{part} {image}", part, image, texts=(f"a {part} {name} {image}", "another"))
        for part, images in pictures.items()
        for name, image in zip(names[part], images, strict=True)
    ]
    write_rows("choices", tmp_path, items, images=files)
    benchmark = open_form("choices", tmp_path)
    of_parts = of_random_vectors(benchmark)
    assert list(of_parts) == list(pictures)
    for part, (outcome, _) in of_parts.items():
        rows = outcome.pair_rows(benchmark)
        assert rows["image"].tolist() == rows["query"].tolist() == names[part]
        assert [benchmark.images[row] for row in outcome.unit] == names[part]
        # Asked are the parts of other images in the same part of the benchmark, or all other images as a whole.
        assert rows["wrong_queries"].tolist() == [sum(np.array(names[part]) != name) for name in names[part]]
        shown = [each for each in (*outcome.errors(benchmark, 9), *outcome.won(benchmark)) if each.query.image]
        assert shown and all(each.right.text.split()[2] == each.query.image for each in shown)
        for each in shown:
            table, row = each.query.picture
            images = benchmark.image_sets[table]
            assert images.originals.names[images.rows[row] if table == "crops" else row] == each.query.image


def test_rows_of_choices_between_parts_of_images_name_the_images(tmp_path):
    box = [0, 0, 8, 8]
    pairs = [
        item(name, "one", (name, box), (other, box), texts=["a"])
        for name, other in (("2.png", "1.png"), ("1.png", "2.png"))
    ]
    write_rows("choices", tmp_path, [item("x", "two", "0.png"), *pairs], images=("0.png", "1.png", "2.png"))
    benchmark = open_form("choices", tmp_path)
    rows = benchmark.tasks[1].score(embeddings_of(benchmark, np.ones)).rows(benchmark).to_pydict()
    assert (rows["right_image"], rows["wrong_image"]) == (["2.png", "1.png"], ["1.png", "2.png"])


def test_rows_of_choices_show_the_comparison_that_decides_each_item(tmp_path):
    """Of every right pair and wrong pair of an image or a text in common, the one with the smallest lead."""
    shapes = {"texts": (1, 5, [(0, 1), (0, 3)]), "images": (4, 1, [(0, 0), (2, 0)]), "both": (2, 2, [(0, 0), (1, 1)])}
    files = tuple(f"{part}{number}_{image}.png" for part in shapes for number in range(9) for image in range(4))
    items = [
        item(f"{part}{number}", part, *(f"{part}{number}_{image}.png" for image in range(images)),
             texts=[f"{part}{number}_{text}" for text in range(texts)], match=match)
        for part, (images, texts, match) in shapes.items()
        for number in range(9)
    ]  # fmt: skip
    write_rows("choices", tmp_path, items, images=files)
    benchmark = open_form("choices", tmp_path)
    embeddings, seen = embeddings_of(benchmark), set()
    for task in benchmark.tasks:
        rows = task.score(embeddings).rows(benchmark).to_pylist()
        images = embeddings.tables["originals"][task.images.index]
        for number, (row, own, texts) in enumerate(zip(rows, task.item_images, task.item_texts, strict=True)):
            scores = images[own] @ embeddings.tables[TEXTS][texts].T
            right = [tuple(pair) for pair in shapes[task.variant][2]]
            # A choice of texts is decided by its first right text.
            first = sorted(right)[:1] if task.variant == "texts" else right
            lead, good, bad = min(
                (scores[good] - scores[bad], good, bad)
                for good in first
                for bad in np.ndindex(scores.shape)
                if bad not in right and (good[0] == bad[0] or good[1] == bad[1])
            )
            name = f"{task.variant}{number}_"
            assert (row["caption"], row["wrong_caption"]) == (f"{name}{good[1]}", f"{name}{bad[1]}")
            assert row["right_score"] - row["wrong_score"] == pytest.approx(lead, abs=1e-6)
            if task.variant != "texts":
                assert (row["right_image"], row["wrong_image"]) == (f"{name}{good[0]}.png", f"{name}{bad[0]}.png")
            seen.add((task.variant, good, bad))
    assert len(seen) > 9, "too few ways to decide an item"


def test_valse_keeps_the_items_its_annotators_agreed_on(tmp_path):
    write_rows("valse", tmp_path, [{}, *({"mturk": {"caption": votes}} for votes in (2, 1, 0))])
    assert [list(task.ids) for task in open_form("valse", tmp_path).tasks] == [["0", "1"]]


def of_random_vectors(benchmark, seed=0):
    """The outcome of each part, and whether each item is right, by plain products."""
    embeddings, found = embeddings_of(benchmark, np.random.default_rng(seed).standard_normal), {}
    for task in benchmark.tasks:
        (table,) = task.images.tables
        images = embeddings.tables[table][task.images.index][task.item_images[:, 0]]
        scores = (embeddings.tables[TEXTS][task.item_texts] * images[:, None]).sum(2)
        found[task.variant] = task.score(embeddings), scores[:, 0] > scores[:, 1:].max(1)
    return found


@pytest.mark.parametrize("name", ["bivlc", "colorswap", "vismin"])
def test_images_inside_parquet_tables_are_read_unchanged(name, tmp_path):
    rows = pack(tmp_path, name)
    info = find_benchmark(name)
    assert info.recognises(tmp_path)
    folders = {"images": tmp_path / "none", "annotations": tmp_path}
    benchmark = info.open(folders, Settings())
    (task,) = benchmark.tasks
    assert len(task.ids) == 5 == len(set(task.ids)) and len(benchmark.images) == 10 and not benchmark.ignored_files
    originals = benchmark.image_sets["originals"]
    images = [row[field]["bytes"] for row in rows for field in row if isinstance(row[field], dict)]
    assert list(originals.hashes) == [hashlib.sha256(data).hexdigest() for data in images]
    order = [9, 0, 4, 5]
    for found, row in zip(originals.read(order), order, strict=True):
        assert found.tobytes() == Image.open(io.BytesIO(images[row])).tobytes()
    some = info.open(folders, Settings(limit=4, allow_missing_images=True))
    assert len(some.images) == 4 and len(some.tasks[0].ids) == 2


@pytest.mark.parametrize(
    ("row", "change", "said"),
    [
        (4, {"image": {"bytes": None, "path": "a.jpg"}}, "1/image: image: found no bytes"),
        (4, {"image": {"bytes": b"text", "path": None}}, "1/image: image: found a file that is not an image"),
        (1, {"caption": None}, "item test-00000-of-00002/1: caption: found None"),
    ],
)
def test_bad_parquet_tables_are_reported_in_one_line(row, change, said, tmp_path):
    pack(tmp_path, "bivlc", change=lambda rows: rows[row].update(change))
    refused(said, lambda: list(open_form("bivlc", tmp_path).image_sets["originals"].read(range(10))))


def test_a_damaged_parquet_table_is_reported_in_one_line(tmp_path):
    pack(tmp_path, "bivlc")
    (tmp_path / "data" / "test-00001-of-00002.parquet").write_bytes(b"PAR1 and no more")
    refused("a complete Parquet file", open_form, "bivlc", tmp_path)


def of_dots(benchmark, seed=0):
    """The figures of each part for random vectors, and similarities by the names of images and the texts."""
    random, names, texts = np.random.default_rng(seed), benchmark.images, benchmark.texts
    images, strings = (random.standard_normal((len(each), 4)) for each in (names, texts))
    found = {
        task.variant: task.score(Embeddings({"originals": images, TEXTS: strings})).counted.values()
        for task in benchmark.tasks
    }
    of_image, of_text = (dict(zip(*each, strict=True)) for each in ((names, images), (texts, strings)))
    return found, lambda image, text: of_image[image] @ of_text[text]


def test_vismin_pairs_text_0_with_image_0_as_the_published_metric_does(tmp_path):
    kinds, rows, data = ["object"] * 12 + ["relation"] * 12, [], io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    picture = {"bytes": data.getvalue(), "path": None}
    for number, kind in enumerate(kinds):
        sides = {f"text_{side}": f"{number} {side}" for side in (0, 1)} | {f"image_{side}": picture for side in (0, 1)}
        rows.append({"id": number, "category": kind, **sides})
    (tmp_path / "default" / "test").mkdir(parents=True)
    for shard, some in enumerate((rows[:10], rows[10:])):
        pq.write_table(pa.Table.from_pylist(some), tmp_path / "default" / "test" / f"000{shard}.parquet")
    benchmark = open_form("vismin", tmp_path)
    results, dot = of_dots(benchmark)
    place = [f"0000.parquet/{row}" for row in range(10)] + [f"0001.parquet/{row}" for row in range(14)]
    right = {kind: [] for kind in kinds}
    for number, kind in enumerate(kinds):
        s = {f"T{t}_I{i}": dot(f"{place[number]}/image_{i}", f"{number} {t}") for t in (0, 1) for i in (0, 1)}
        # compute_contrastive_accuracy of vismin-bench/metric.py, commit 680a3ee.
        text = s["T0_I0"] > s["T1_I0"] and s["T1_I1"] > s["T0_I1"]
        image = s["T0_I0"] > s["T0_I1"] and s["T1_I1"] > s["T1_I0"]
        right[kind].append((text, image, text and image))
    for kind, values in right.items():
        scores = 100 * np.mean(values, axis=0)
        assert [results[kind][f"{each}_score"] for each in ("text", "image", "group")] == pytest.approx(scores.tolist())
    assert 0 < np.mean(right["object"]) < 1
    # A model that gives each text the vector of its image is right everywhere.
    images = np.random.default_rng(0).standard_normal((len(benchmark.images), 16))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    row_of = {name: row for row, name in enumerate(benchmark.images)}
    own_row = {f"{n} {t}": row_of[f"{place[n]}/image_{t}"] for n in range(24) for t in (0, 1)}
    texts = images[[own_row[text] for text in benchmark.texts]]
    for task in benchmark.tasks:
        assert task.score(Embeddings({"originals": images, TEXTS: texts})).counted.values()["group_score"] == 100.0


def test_mmvp_uses_the_published_prefix_and_pairs_of_images(tmp_path):
    rows = [{"Question ID": str(n), "Statement": f"statement {n}"} for n in range(1, 21)]
    write_rows("mmvp", tmp_path, rows, images=tuple(f"Color & Look/{n}.jpg" for n in range(1, 21)))
    benchmark = open_form("mmvp", tmp_path)
    results, dot = of_dots(benchmark, seed=1)
    assert set(benchmark.texts) == {f"a photo of statement {n}" for n in range(1, 21)}
    # scripts of the authors: each statement chooses between the two images; a pair is right if both do.
    right = []
    for n in range(1, 21, 2):
        one, other = f"Color & Look/{n}.jpg", f"Color & Look/{n + 1}.jpg"
        first = dot(one, f"a photo of statement {n}") > dot(other, f"a photo of statement {n}")
        second = dot(other, f"a photo of statement {n + 1}") > dot(one, f"a photo of statement {n + 1}")
        right.append(first and second)
    assert results["color_and_look"]["image_score"] == pytest.approx(100 * np.mean(right)) and 0 < np.mean(right) < 1


def test_spec_has_the_published_accuracy_of_each_direction(tmp_path):
    images, random, expected = set(), np.random.default_rng(5), {}
    for subset, count in (("count", 4), ("existence", 2)):
        (tmp_path / subset).mkdir()
        names, texts = [f"x/{k}.png" for k in range(30)], [f"{subset} {k}" for k in range(30)]
        for way, queries, keys in (("image2text", names, texts), ("text2image", texts, names)):
            rows = [{"query": query, "keys": random.choice(keys, count, replace=False).tolist(),
                     "label": int(random.integers(count))} for query in queries]  # fmt: skip
            (tmp_path / subset / f"{way}.json").write_text(json.dumps(rows))
            expected[f"{subset}_{way.replace('2', '_to_')}"] = subset, rows
        images |= {f"{subset}/{name}" for name in names}
    write_pictures(tmp_path / "images", sorted(images), noise(8, 8))
    benchmark = open_form("spec", tmp_path)
    found, dot = of_dots(benchmark)
    for part, (subset, rows) in expected.items():
        by_text = part.endswith("text_to_image")
        scores = [[dot(f"{subset}/{key if by_text else row['query']}", row["query"] if by_text else key)
                   for key in row["keys"]] for row in rows]  # fmt: skip
        accuracy = 100 * np.mean(np.argmax(scores, axis=1) == [row["label"] for row in rows])
        assert found[part]["image_score" if by_text else "ota"] == pytest.approx(accuracy) and 0 < accuracy < 100
    pools = {task.variant: [pool.variant.name for pool in task.pools] for task in benchmark.tasks}
    ways = {part: part.split("_", 1)[1] for part in expected}
    assert pools == {part: [way, f"{way}/all"] for part, way in ways.items()}
    rows[0]["label"] = 2
    (tmp_path / "existence" / "text2image.json").write_text(json.dumps(rows))
    refused("label: found 2; wanted 0 to 1", open_form, "spec", tmp_path)


def scam_form(folder, scenes=30):
    """The published form: every scene with the word, with the word wiped and with a synthetic one."""
    orders = {"SCAM": range(scenes), "NoSCAM": range(scenes - 1, -1, -1), "SynthSCAM": range(scenes)}
    rows = [{"file_name": f"{kind}_img_{n:04}.jpg", "type": kind, "id": f"{kind}_img_{n:04}",
             "object_label": f"thing {n % 7}", "attack_word": f"word {n % 4}"}
            for kind, order in orders.items() for n in order]  # fmt: skip
    write_rows("scam", folder, rows, images=tuple(row["file_name"] for row in rows))
    return rows


def scam_vectors(benchmark, seed=2):
    """Random unit vectors, and whether each image is right by the published code for OpenCLIP models."""
    random, tables = np.random.default_rng(seed), {}
    for name, rows in (("originals", len(benchmark.images)), (TEXTS, len(benchmark.texts))):
        vectors = random.standard_normal((rows, 6)) + 0.5
        tables[name] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    of_text = dict(zip(benchmark.texts, tables[TEXTS], strict=True))
    of_image = dict(zip(benchmark.images, tables["originals"], strict=True))

    def is_right(row):
        names = (row["object_label"], row["attack_word"])
        means = [np.mean([of_text[template.format(name)] for template in TEMPLATES], axis=0) for name in names]
        thing, word = (of_image[row["file_name"]] @ mean / np.linalg.norm(mean) for mean in means)
        return thing > word

    return Embeddings(tables), is_right


def test_scam_is_scored_with_the_mean_embedding_of_the_published_templates(tmp_path):
    rows = scam_form(tmp_path)
    benchmark = open_form("scam", tmp_path)
    assert len(set(TEMPLATES)) == 32 and all(template.count("{}") == 1 for template in TEMPLATES)
    assert len(benchmark.texts) == 32 * (7 + 4) == len(set(benchmark.texts))
    embeddings, is_right = scam_vectors(benchmark)
    for task in benchmark.tasks:
        right = [is_right(row) for row in rows if row["type"].lower() == task.variant]
        assert task.score(embeddings).counted.values()["ota"] == pytest.approx(100 * np.mean(right))
        assert 0 < np.mean(right) < 1 and not task.pools
    write_rows("scam", tmp_path, [{"type": "RTA"}])
    refused("type: found 'rta'; wanted one of scam", open_form, "scam", tmp_path)


def test_scam_reports_the_drop_with_an_interval_on_the_same_scenes(tmp_path):
    rows, scenes = scam_form(tmp_path), 30
    benchmark = open_form("scam", tmp_path)
    embeddings, is_right = scam_vectors(benchmark)
    made = make_results("one", "paper", {}, [task.score(embeddings) for task in benchmark.tasks])
    right = {kind: np.zeros(scenes) for kind in ("scam", "noscam", "synthscam")}
    for row in rows:
        right[row["type"].lower()][int(row["id"][-4:])] = 100.0 * is_right(row)
    assert "drop" not in made["tasks"]["scam"]["noscam"] and set(made["tasks"]["scam"]) == set(right)
    for kind in ("scam", "synthscam"):
        lost = right["noscam"] - right[kind]
        assert made["tasks"]["scam"][kind]["drop_points"] == pytest.approx(lost.mean())
        ends = np.percentile(image_draws(scenes) @ lost / scenes, [2.5, 97.5])
        assert made["intervals"]["scam"][kind]["drop_points"] == pytest.approx(list(ends), abs=1e-9)
        assert "consistency" not in made["tasks"]["scam"][kind]  # changes by corruption are of the same items
    for name in ("NoSCAM_img_0003.jpg", "SCAM_img_0004.jpg"):
        (tmp_path / "images" / name).unlink()
    partial = open_form("scam", tmp_path, allow_missing_images=True)
    sizes = {task.variant: len(task.ids) for task in partial.tasks}
    assert sizes == {"scam": 29, "noscam": 29, "synthscam": 30}
    units = [set(task.resampled_by.tolist()) for task in partial.tasks]
    assert len(set.union(*units)) == 30 and len(set.intersection(*units)) == 28


def test_pair_scorers_average_the_scores_of_several_prompts_of_a_text(tmp_path):
    rows = scam_form(tmp_path)
    benchmark = open_form("scam", tmp_path)
    matrix = np.random.default_rng(4).standard_normal((len(benchmark.images), len(benchmark.texts)))
    of_image, of_text = ({name: row for row, name in enumerate(each)} for each in (benchmark.images, benchmark.texts))
    for task in benchmark.tasks:
        outcome = task.score_by_pairs(MatrixScores({"originals": matrix}))
        right = []
        for row in (row for row in rows if row["type"].lower() == task.variant):
            places = [[of_text[template.format(row[field])] for template in TEMPLATES]
                      for field in ("object_label", "attack_word")]  # fmt: skip
            thing, word = matrix[of_image[row["file_name"]]][np.array(places)].mean(axis=1)
            right.append(thing > word)
        assert outcome.counted.values()["ota"] == pytest.approx(100 * np.mean(right))


def test_half_truth_metrics_match_the_published_ht_and_cor(tmp_path):
    data, rows = io.BytesIO(), []
    for file in ("coco_qwen", "cc3m_qwen"):
        for number in range(20):
            Image.new("RGB", (8, 8), (number * 9, len(file), 0)).save(data, "PNG")
            texts = {name: f"{file} {number} {name}" for name in ("anchor", "half_truth", "full_truth")}
            kind = ("entity", "relation")[number % 3 > 0]
            image = {"bytes": data.getvalue(), "path": None}
            rows.append({"id": f"{number}", "image": image, "triplet_type": kind, **texts})
            data = io.BytesIO()
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[-20:]), tmp_path / "data" / f"{file}.parquet")
    benchmark = find_benchmark("half_truths").open({"images": tmp_path, "annotations": tmp_path}, Settings())
    found, dot = of_dots(benchmark, seed=3)
    # As in the published code: one image and three texts a row, strict comparisons.
    s = [[dot(image, each[name]) for image, each in zip(benchmark.images, rows, strict=True)]
         for name in ("anchor", "half_truth", "full_truth")]  # fmt: skip
    anchor, half, full = np.array(s).reshape(3, 2, 20)
    for place, file in enumerate(("coco_qwen", "cc3m_qwen")):
        ht, relation = anchor[place] > half[place], np.arange(20) % 3 > 0
        assert found[file]["ota"] == pytest.approx(100 * ht.mean())
        assert found[f"{file}_relation"]["ota"] == pytest.approx(100 * ht[relation].mean())
        assert found[f"{file}_entity"]["ota"] == pytest.approx(100 * ht[~relation].mean())
        cor = ht & (full[place] > anchor[place])
        assert found[f"{file}_order"]["pairs_right"] == pytest.approx(100 * cor.mean()) and 0 < cor.mean() < ht.mean()
    assert [task.variant for task in benchmark.tasks if task.pools] == ["coco_qwen", "cc3m_qwen"]


@pytest.mark.slow
def test_whatsup_pairs_and_sets_match_the_published_ones(tmp_path):
    names = [f"data/{one}_{how}_{other}.jpeg" for one, other in (("mug", "plate"), ("cap", "arm-chair"), ("a", "b"))
             for how in ("left_of", "right_of", "on", "under")]  # fmt: skip

    rows = [{"image_path": name, "caption_options": [f"{name} {k}" for k in range(2)]} for name in names]
    write_rows("whatsup", tmp_path, rows, images=tuple(names))
    for seed in range(20):
        ((outcome, right),) = of_random_vectors(open_form("whatsup", tmp_path), seed).values()
        # In the order of the names above: left and right, on and under of each pair of things.
        values, pairs, sets = outcome.counted.values(), right.reshape(-1, 2), right.reshape(-1, 4)
        assert values["pairs_right"] == pytest.approx(100 * pairs.all(1).mean())
        assert values["sets_right"] == pytest.approx(100 * sets.all(1).mean())
    (tmp_path / "images" / names[0]).unlink()
    partial = open_form("whatsup", tmp_path, allow_missing_images=True)
    for seed in range(20):  # the set of three images does not count
        ((outcome, right),) = of_random_vectors(partial, seed).values()
        assert outcome.counted.values()["sets_right"] == 100 * np.mean([right[3:7].all(), right[7:].all()])


def test_aro_averages_over_relations_and_frequent_pairs_of_attributes(tmp_path):
    relations = ["on"] * 5 + ["in"] + ["near"] * 3
    attributes = [["red", "old"]] * 24 + [["red", "old", "big"]] + [["old", "red"]] * 24
    for kind, labels in (("relation", relations), ("attribution", attributes)):
        rows = [
            {"image_path": f"{n % 7}.jpg", "relation_name": label, "attributes": label, "true_caption": f"dog {n}",
             "false_caption": f"cat {n}"}
            for n, label in enumerate(labels)
        ]  # fmt: skip
        file, images = f"visual_genome_{kind}.json", tuple(f"{n}.jpg" for n in range(7))
        write_rows("aro", tmp_path, rows, file=file, images=images)
    info = find_benchmark("aro")
    tables = info.reader.read(tmp_path, info.files)[0]
    labels = [group.label for item in tables.items() for group in item.groups]
    assert labels == relations + ["red_old"] * 25
    found = of_random_vectors(open_form("aro", tmp_path))
    outcome, right = found["relation"]
    means = [right[:5].mean(), right[5], right[6:].mean()]
    assert outcome.counted.values()["by_kind"] == pytest.approx(100 * np.mean(means))
    low, high = outcome.counted.intervals()["by_kind"]
    assert low <= outcome.counted.values()["by_kind"] <= high and low < high
    # A draw without a relation's images is a mean over the others.
    every = [1.0, 0.0, 0.5, 0.0, 0.5, 0.5, 0.0, 0.25]
    names = ["ota", "ties", *(f"{what} of kind {kind}" for what in ("items", "right") for kind in range(3))]
    by_kind = outcome.counted.metrics["by_kind"].function
    assert by_kind(dict(zip(names, map(np.asarray, every), strict=True))) == pytest.approx(100 * (1 + 0.5) / 2)
    of_attributes, right = found["attribution"]
    assert of_attributes.counted.values()["by_kind"] == pytest.approx(100 * right[:25].mean())
    before = open_form("aro", tmp_path).conditions
    (tmp_path / "symmetric_relations.txt").write_text("near\nbeside\n")
    assert open_form("aro", tmp_path).conditions != before
    outcome, right = of_random_vectors(open_form("aro", tmp_path))["relation"]
    assert outcome.counted.values()["by_kind"] == pytest.approx(100 * np.mean(means[:2]))


def test_hard_positives_must_be_aligned(tmp_path):
    write(FORMS["hard_positives"], tmp_path)
    other = tmp_path / "swapped_data" / "vl_checklist_relations.json"
    rows = json.loads(other.read_text())
    other.write_text(json.dumps([{**rows[0], "false_caption": "another"}]))
    refused("the same in both files", open_form, "hard_positives", tmp_path)
    other.write_text(json.dumps(rows * 2))
    refused("found 2; wanted 1, as in", open_form, "hard_positives", tmp_path)


def test_texts_alone_are_compared_if_there_are_no_images(tmp_path):
    write(FORMS["hard_positives"], tmp_path)
    info = find_benchmark("hard_positives")
    benchmark = info.open({"images": tmp_path / "none", "annotations": tmp_path}, Settings())
    (task,) = benchmark.tasks
    vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    assert task.asks == "alike" and not benchmark.image_sets and "compared without images" in benchmark.notes[0]
    assert task.score(Embeddings({TEXTS: vectors})).counted.values() == {"tot": 100.0, "ties": 0.0}
    assert task.score(Embeddings({TEXTS: vectors[[0, 2, 1]]})).counted.values() == {"tot": 0.0, "ties": 0.0}


def test_a_benchmark_of_texts_alone_is_evaluated_and_reported(tmp_path, capsys):
    write(FORMS["hard_positives"], tmp_path / "data" / "hard_positives")
    (tmp_path / "m.py").write_text(
        "import numpy as np\n"
        "class Model:\n"
        "    def encode_image(self, images):\n"
        "        raise AssertionError('there is no image')\n"
        "    def encode_text(self, texts):\n"
        "        letters = 'dogmat'\n"
        "        return np.array([[1.0, *map(text.find, letters)] for text in texts])\n"
    )
    words = ["evaluate", f"{tmp_path / 'm.py'}:Model", "--data", str(tmp_path / "data"), "--benchmarks",
             "hard_positives", "--no-cache", "--out", str(tmp_path / "out")]  # fmt: skip
    assert main(words) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["tasks"]["hard_positives"]["replace_relations"] == {"tot": 100.0, "ties": 0.0}
    assert results["kinds"] == {"hard_positives": "text_choice"} and (tmp_path / "out" / "report.html").is_file()
    assert "compared without images" in " ".join(results["notes"])


def test_the_command_writes_the_plain_form(tmp_path, capsys, refusal):
    write(FORMS["valse"], tmp_path / "valse")
    out = tmp_path / "items.jsonl"
    assert main(["benchmarks", "--data", str(tmp_path), "--items", "valse", "--out", str(out)]) == 0
    line = {"id": "0", "images": [{"file": "a.jpg"}], "texts": ["two dogs", "three dogs"], "match": [[0, 0]]}
    assert json.loads(out.read_text()) == {**line, "part": "actant_swap"}
    assert "1 items of valse, 1 images, 2 texts" in capsys.readouterr().out
    for words, said in (
        (["--items", "valse"], "--items: found it alone; wanted it with --data and --out"),
        (["--data", str(tmp_path), "--items", "rococo", "--out", "x"], "a multiple-choice benchmark"),
        (["--data", str(tmp_path), "--items", "aro", "--out", "x"], "23,937 relations"),
        (["--data", str(tmp_path), "--items", "valse"], "wanted it with --data and --out"),
    ):
        assert said in refusal("benchmarks", *words)


def test_a_table_of_a_true_and_a_false_caption_is_a_benchmark_of_choices(tmp_path):
    write_pictures(tmp_path / "images", ("a.png", "b.png"))
    rows = [("a.png", "a red ball", "a blue ball", "colour"), ("b.png", "two dogs, one cat", "one dog", "count")]
    lines = [{"id": f"choices {number}", "images": [{"file": image}], "texts": [true, false], "match": [[0, 0]],
              "part": part} for number, (image, true, false, part) in enumerate(rows, 1)]  # fmt: skip
    (tmp_path / "table").mkdir()
    with (tmp_path / "table" / "choices.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "true", "false", "part"), *rows])
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert recognise(tmp_path / "table").name == "choices"
    open_ = find_benchmark("choices").open
    one, other = (open_({"images": tmp_path / "images", "annotations": tmp_path / form}, Settings())
                  for form in ("table", "lines"))  # fmt: skip
    assert one.texts == other.texts and one.images == other.images and not one.ignored_files
    for left, right in zip(one.tasks, other.tasks, strict=True):
        assert (list(left.ids), left.variant) == (list(right.ids), right.variant)
        for field in ("item_images", "item_texts", "match", "group", "resampled_by"):
            np.testing.assert_array_equal(getattr(left, field), getattr(right, field))
    # A table beside items.jsonl is not read, which is reported.
    shutil.copy(tmp_path / "table" / "choices.csv", tmp_path / "lines")
    both = open_({"images": tmp_path / "images", "annotations": tmp_path / "lines"}, Settings())
    assert both.fingerprint() == other.fingerprint() and both.ignored_files == ("choices.csv",)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("image,true,wrong\na.png,one,two", "item in row 1: false: found nothing (the fields"),
        ("image,true,false\na.png,one,two\na.png,one, ", "item in row 2: false: found ' '; wanted a non-empty string"),
        ("image,true,false\na.png,one,one", "item in row 1: false: found the same text as true: 'one'; wanted another"),
        ("image,true,false,part\na.png,one,two,", "item in row 1: part: found ''; wanted a string"),
        ("image,true,false\n../a.png,one,two", "item in row 1: image: found '../a.png'; wanted a path inside"),
    ],
)
def test_a_bad_row_of_a_table_of_choices_is_named(table, message, tmp_path):
    (tmp_path / "choices.csv").write_text(table + "\n")
    refused(re.escape(f"choices.csv: {message}"), open_form, "choices", tmp_path)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "items", "images"),
    [
        ("sugarcrepe_pp", 2675, 861),
        ("valse", 957, 822),
        pytest.param("hard_positives", 27443, 8041, marks=pytest.mark.thorough),
    ],
)
def test_the_published_files_are_read_completely(name, items, images, real_data):
    texts_alone = name == "hard_positives"
    folders = {"images": real_data / "coco" / ("none" if texts_alone else "images")}
    folders["annotations"] = real_data / "compositionality" / name
    benchmark = find_benchmark(name).open(folders, Settings(allow_missing_images=True))
    assert sum(len(task.ids) for task in benchmark.tasks) == items and len(benchmark.images) == images


def test_verify_reports_oddities_of_items(tmp_path, capsys):
    def change(rows):
        rows += [
            {**rows[0], "id": "tie", "images": [{"file": "a.jpg"}, {"file": "b.jpg"}], "texts": ["one", "one"]},
            {**rows[0], "id": "bag", "texts": ["a red dog, a cat", "A cat a red dog"]},
            {**rows[0], "id": "again", "texts": ["one", "two  "]},
            {**rows[0], "id": "again 2", "texts": ["one", "two  "]},
        ]

    write(FORMS["choices"], tmp_path, change)
    (tmp_path / "images" / "b.jpg").unlink()
    words = ["verify", "--annotations", str(tmp_path), "--images", str(tmp_path / "images")]
    assert main([*words, "--out", str(tmp_path / "audit.json")]) == 0
    report = json.loads((tmp_path / "audit.json").read_text())
    counts = {name: sum(each["count"] for each in quirk["parts"].values()) for name, quirk in report["quirks"].items()}
    assert counts == {"tie": 1, "text_twice": 1, "image_twice": 0, "same_bag": 2, "white_space": 2, "repeats": 1}
    assert report["records"] == 5 and report["images"]["missing"] == 1
    said = capsys.readouterr().out
    assert "mine: 5 items" in said and "mine tie: one | one" in said


@pytest.mark.real_data
def test_verify_finds_the_published_quirks(real_data):
    report = audit(real_data / "compositionality" / "sugar_crepe")
    assert report["records"] == 7511 and report["images"]["named"] == 1560
    same_bag = sum(each["count"] for each in report["quirks"]["same_bag"]["parts"].values())
    assert same_bag / 7511 == pytest.approx(0.076, abs=0.002)
