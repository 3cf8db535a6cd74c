"""Write one small file of each benchmark of choices in its published form, with made contents, and damage it.

The forms are those that the benchmarks' public loaders read; each reader's docstring names them.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.support.world import noise, write_pictures

Rows = list[Any]


@dataclasses.dataclass(frozen=True)
class Form:
    """A benchmark's file.

    Attributes:
        file: its path.
        rows: its records: dicts, or lists.
        images: files to make.
        shapes: (images, texts) of the items that come of it, by part.
        image_field: a field that names an image by its path, and the field of a text.
        text_field: a text.
        by_id: whether the file is an object of records by id.
        box: fields of the box, where there is one.
        id_field: the field of ids that must be unique, where it has one.
        last_part: whether images are looked for by the last part of a path.
        tables: the same on the hub, with the images inside.
    """

    file: str
    rows: Rows
    images: tuple[str, ...]
    shapes: dict[str, tuple[int, int]]
    text_field: str | int
    image_field: str | int | None = None
    by_id: bool = False
    box: str | None = None
    id_field: str | None = None
    last_part: bool = False
    tables: tuple[str, str] = ("data/test-00000-of-00002.parquet", "data/test-00001-of-00002.parquet")


VG = {"image_id": "7", "image_path": "7.jpg", "bbox_x": 2, "bbox_y": 3, "bbox_w": 20, "bbox_h": 18}
PAIR = {"true_caption": "the dog is on the mat", "false_caption": "the mat is on the dog"}
REPLACE = {"image_id": "7", "image_path": "data/VG_100K/7.jpg"}
VALSE = {"image_file": "a.jpg", "caption": "two dogs", "foil": "three dogs", "mturk": {"caption": 3, "foil": 0}}
NEG = {f"caption_{place}": f"a dog and no cat number {place}" for place in range(4)}
COLA = "https://cs-people.bu.edu/array/data/vg_gqa_images"
REGION = {"image_id": "7", "x": "1", "y": "2", "width": "10", "height": "12", "caption": "a red dog"}

FORMS = {
    "sugarcrepe": Form(
        "swap_att.json",
        [{"filename": "a.jpg", "caption": "a dog", "negative_caption": "a cat"}],
        ("a.jpg",), {"swap_att": (1, 2)}, "caption", "filename", by_id=True,
    ),
    "sugarcrepe_pp": Form(
        "swap_att.json",
        [{"id": 3, "filename": "a.jpg", "caption": "a dog", "caption2": "one dog", "negative_caption": "a cat"}],
        ("a.jpg",), {"swap_att": (1, 3)}, "caption2", "filename", id_field="id",
    ),
    "hard_positives": Form(
        "data/vl_checklist_relations.json", [{**REPLACE, **PAIR}], ("data/VG_100K/7.jpg",),
        {"replace_relations": (1, 3)}, "true_caption", "image_path",
    ),
    "valse": Form("actant-swap.json", [VALSE], ("a.jpg",), {"actant_swap": (1, 2)}, "foil", "image_file", by_id=True),
    "aro": Form(
        "visual_genome_relation.json", [{**VG, **PAIR, "relation_name": "on"}], ("7.jpg",), {"relation": (1, 2)},
        "true_caption", "image_path", box="bbox_w",
    ),
    "crepe": Form(
        "prod_hard_negatives/swap/prod_vg_hard_negs_swap_complexity_4.csv",
        [{**REGION, "hard_negs": "['a dog red', 'dog a red']"}], ("7.jpg",), {"prod_swap_complexity_4": (1, 3)},
        "caption", box="width",
    ),
    "winoground": Form(
        "examples.jsonl",
        [{"id": 0, "image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "caption_0": "old kisses young",
          "caption_1": "young kisses old", "collapsed_tag": "Object"}],
        ("ex_0_img_0.png", "ex_0_img_1.png"), {"object": (2, 2)}, "caption_1", "image_1", id_field="id",
    ),
    "colorswap": Form(
        "test.json",
        [{"id": 5, "image_1": "images/1.png", "image_2": "images/2.png", "caption_1": "a red dog and a blue cat",
          "caption_2": "a blue dog and a red cat"}],
        ("images/1.png", "images/2.png"), {"all": (2, 2)}, "caption_1", "image_2", id_field="id",
    ),
    "bivlc": Form(
        "test.jsonl",
        [{"image": "p/0.jpg", "caption": "a dog", "negative_image": "n/0.jpg", "negative_caption": "a cat",
          "type": "Replace", "subtype": "Obj"}],
        ("p/0.jpg", "n/0.jpg"), {"replace_obj": (2, 2)}, "negative_caption", "negative_image",
    ),
    "eqben": Form(
        "private_info_global.json",
        [{"image0": "eqbenag/a/0.jpg", "image1": "eqbenag/a/1.jpg", "caption0": "he sits", "caption1": "he stands"}],
        ("eqbenag/a/0.jpg", "eqbenag/a/1.jpg"), {"eqbenag": (2, 2)}, "caption0", "image1",
    ),
    "cola": Form(
        "COLA_multiobjects_matching_benchmark.json",
        [[f"{COLA}/1.jpg", "red dog blue cat", f"{COLA}/2.jpg", "blue dog red cat"]],
        ("1.jpg", "2.jpg"), {"multi_objects": (2, 2)}, 1, 0, last_part=True,
    ),
    "mmvp": Form(
        "Questions.csv",
        [{"Question ID": "1", "Type": "Color & Look", "Statement": "the dog is red"},
         {"Question ID": "2", "Type": "Color & Look", "Statement": "the dog is blue"}],
        ("Color & Look/1.jpg", "Color & Look/2.jpg"), {"color_and_look": (2, 2)}, "Statement",
    ),
    "svo_probes": Form(
        "svo_probes.csv",
        [{"sentence": "a man walks", "pos_image_id": "1", "neg_image_id": "2", "subj_neg": "False", "verb_neg": "True",
          "obj_neg": "False"}],
        ("1.jpg", "2.jpg"), {"verb": (2, 1)}, "sentence",
    ),
    "negbench": Form(
        "COCO_val_mcq_llama3.1_rephrased.csv",
        [{"image_path": "data/coco/1.jpg", "correct_answer": "2", **NEG, "correct_answer_template": "negative"}],
        ("1.jpg",), {"coco_val_negative": (1, 4)}, "caption_3", "image_path", last_part=True,
    ),
    "whatsup": Form(
        "controlled_images_dataset.json",
        [{"image_path": "data/controlled_images/a.jpg",
          "caption_options": ["on it", "under it", "left of it", "right of it"]}],
        ("data/controlled_images/a.jpg",), {"controlled_a": (1, 4)}, "caption_options", "image_path",
    ),
    "half_truths": Form(
        "coco_qwen.jsonl",
        [{"id": "7-0", "image": "val2014/a.jpg", "triplet_type": "relation", "anchor": "a dog",
          "half_truth": "a dog on a sofa", "full_truth": "a dog on a mat"}],
        ("val2014/a.jpg",), {"coco_qwen": (1, 2), "coco_qwen_relation": (1, 2), "coco_qwen_order": (1, 2)}, "anchor",
        "image", id_field="id", tables=("data/coco_qwen.parquet", "data/cc3m_qwen.parquet"),
    ),
    "scam": Form(
        "metadata.jsonl",
        [{"file_name": "SCAM_img_0001.jpg", "type": "SCAM", "object_label": "ball", "attack_word": "car",
          "postit_area_pct": 0.377, "id": "SCAM_img_0001"}],
        ("SCAM_img_0001.jpg",), {"scam": (1, 2)}, "attack_word", "file_name", id_field="id",
    ),
    "vismin": Form(
        "vismin.jsonl",
        [{"id": 0, "image_0": "0.png", "text_0": "two dogs", "image_1": "1.png", "text_1": "three dogs",
          "category": "counting"}],
        ("0.png", "1.png"), {"counting": (2, 2)}, "text_1", "image_1", id_field="id",
        tables=("default/test/0000.parquet", "default/test/0001.parquet"),
    ),
    "spec": Form(
        "count/image2text.json",
        [{"query": "dog/2.png", "keys": ["one dog", "two dogs", "three dogs"], "label": 1}],
        ("count/dog/2.png",), {"count_image_to_text": (1, 3)}, "keys", "query",
    ),
    "imagecode": Form(
        "valid_data.json", [{"4": "the second from the left"}], tuple(f"0/img{place}.jpg" for place in range(10)),
        {"video": (10, 1)}, "4", by_id=True,
    ),
    "choices": Form(
        "items.jsonl",
        [{"id": "x", "images": [{"file": "a.jpg", "box": [1, 2, 9, 9]}, {"file": "b.jpg"}], "texts": ["one", "two"],
          "match": [[0, 0], [1, 1]], "part": "mine"}],
        ("a.jpg", "b.jpg"), {"mine": (2, 2)}, "texts", id_field="id",
    ),
}  # fmt: skip


def _reworded(row: Any) -> Any:
    return {**row, "true_caption": "a dog is on the mat"} if isinstance(row, dict) else row


def write(form: Form, folder: Path, change: Callable[[Rows], None] | None = None) -> None:
    """Write the file, changed, and its images, of 40 by 30 pixels."""
    rows = json.loads(json.dumps(form.rows))
    if change is not None:
        change(rows)
    path = folder / form.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else ["sentence"])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps({str(place): row for place, row in enumerate(rows)} if form.by_id else rows))
    if form.file.startswith("data/vl_checklist"):
        other = folder / "swapped_data" / path.name
        other.parent.mkdir(exist_ok=True)
        other.write_text(json.dumps([_reworded(row) for row in rows]))
    write_pictures(folder / "images", form.images, noise(30, 40))


def pack(folder, name, rows_per_group=2, change=None):
    """Write a published form's items as the hub's Parquet tables, images inside, in two shards."""
    form, rows = FORMS[name], []
    write(form, folder / "plain")
    for number in range(5):
        row = dict(form.rows[0])
        row |= {"id": number} if "id" in row else {}
        for field in [field for field in row if str(row[field]) in form.images]:
            data = io.BytesIO()
            Image.new("RGB", (8, 8), (number * 40, len(field), 0)).save(data, "PNG")
            row[field] = {"bytes": data.getvalue(), "path": None}
        rows.append(row)
    if change is not None:
        change(rows)
    for path, some in zip(form.tables, (rows[:3], rows[3:]), strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(some), folder / path, row_group_size=rows_per_group)
    return rows
