"""The class of docs/evaluating.md for a model of another framework works as printed, on a tiny CLIP in `transformers`.

The checkpoint is our own tiny model, exported: both must embed alike.
"""

import importlib.util
import json
import re

import numpy as np
import pytest
from PIL import Image

from rococo_jax.cli.main import main
from tests.support.paths import CHECKOUT
from tests.support.tiny import exportable_encoder, random_captions
from tests.support.world import write_world

pytest.importorskip("torch")


@pytest.mark.slow
def test_the_class_of_the_page_is_evaluated_and_embeds_as_our_own_reader(exported, tmp_path):
    ours = exportable_encoder()
    page = (CHECKOUT / "docs" / "evaluating.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```py\n(# my_models\.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    path = tmp_path / "my_models.py"
    path.write_text(source.replace('"kakaobrain/align-base"', repr(str(exported))), encoding="utf-8")

    captions = [random_captions(5, number) for number in range(4)]
    data = write_world(tmp_path, captions, altered={"danger": "{} q".format})
    images, annotations = data / "images", data / "annotations"
    out = tmp_path / "out"
    asked = ["--images", str(images), "--annotations", str(annotations), "--mixed-galleries", "none"]
    assert main(["evaluate", f"{path}:make_align", *asked, "--out", str(out), "--no-report"]) == 0
    tasks = json.loads((out / "results.json").read_text())["tasks"]
    assert {"clean", "danger"} <= tasks["image_to_text"].keys()

    spec = importlib.util.spec_from_file_location("my_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = module.make_align()
    pictures, captions = [Image.open(each) for each in sorted(images.iterdir())], random_captions(8)
    for mine, foreign in (
        (ours.encode_image(pictures), theirs.encode_image(pictures)),
        (ours.encode_text(captions), theirs.encode_text(captions)),
    ):
        foreign = np.asarray(foreign)
        # float32 in two frameworks: products in another order.
        np.testing.assert_allclose(foreign / np.linalg.norm(foreign, axis=1, keepdims=True), mine, atol=1e-5)
