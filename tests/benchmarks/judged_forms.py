"""Files of CxC and ECCV Caption in their published form, with made contents, beside three images with captions."""

import json
from pathlib import Path

from PIL import Image

NAMES = [f"COCO_val2014_{number:012}.jpg" for number in (11, 22, 33)]
IDS = {"11": [1, 2], "22": [3], "33": [4]}
TABLES = {
    "sits_test.csv": "caption,image,agg_score\nCOCO_val2014:sentid:1,{1},2.5\nCOCO_val2014:sentid:3,{2},0\n",
    "sis_test.csv": "image1,image2,agg_score\n{0},{1},5\n{1},{2},1.5\n",
}
JUDGED = {"eccv_image_to_caption.json": {"11": [1, 3], "22": [3]}, "eccv_caption_to_image.json": {"4": [33, 11]}}


def write_judged(folder: Path) -> None:
    """Three images with captions, their ids, ratings and judgements."""
    (folder / "images").mkdir()
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(folder / "images" / name)
    captions = [{"image": name, "caption": [f"{name} {k}" for k in range(2)]} for name in NAMES]
    (folder / "coco_karpathy_test.json").write_text(json.dumps(captions))
    (folder / "original_image_to_caption.json").write_text(json.dumps(IDS))
    for name, text in TABLES.items():
        (folder / name).write_text(text.format(*NAMES))
    for name, value in JUDGED.items():
        (folder / name).write_text(json.dumps(value))
