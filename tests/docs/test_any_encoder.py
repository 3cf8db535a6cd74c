"""The classes of docs/how-to/your-model.md and of the notebook around a model of another framework work as printed.

The checkpoint is our own tiny model, exported as a CLIP of `transformers`: both must embed alike.
"""

import json
import re
import runpy

import nbformat
import numpy as np
import pytest
from PIL import Image

from rococo_jax.cli.main import main
from tests.support.paths import CHECKOUT
from tests.support.tiny import exportable_encoder, random_captions
from tests.support.world import noise, write_world

pytest.importorskip("torch")


@pytest.fixture
def page_class(exported, tmp_path):
    """The file that the page names, for our model."""
    page = (CHECKOUT / "docs" / "how-to" / "your-model.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```py\n(# my_models\.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    path = tmp_path / "my_models.py"
    path.write_text(source.replace('"kakaobrain/align-base"', repr(str(exported))), encoding="utf-8")
    return path


def test_the_documented_classes_give_the_same_embeddings_as_our_reader(page_class, exported):
    cells = nbformat.read(CHECKOUT / "notebooks" / "your_model.ipynb", as_version=4).cells
    (source,) = [cell.source for cell in cells if "class TorchClip" in cell.source]
    of_notebook = {}
    exec(source, of_notebook)
    ours, captions = exportable_encoder(), random_captions(8)
    pictures = [noise(30 + number, 40)(number, np.random.default_rng(number)) for number in range(4)]
    pictures += [Image.new("RGB", (48, 40), (200, 30, 30))]
    for theirs in (runpy.run_path(str(page_class))["make_align"](), of_notebook["TorchClip"](str(exported))):
        for method, items in (("encode_image", pictures), ("encode_text", captions)):
            vectors = np.asarray(getattr(theirs, method)(items))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            # float32 in two frameworks: products in another order.
            np.testing.assert_allclose(vectors, getattr(ours, method)(items), atol=1e-5)


@pytest.mark.slow
def test_the_documented_class_can_be_evaluated(page_class, tmp_path):
    data = write_world(tmp_path, [random_captions(5, n) for n in range(4)], altered={"danger": "{} q".format})
    words = ["--images", data / "images", "--annotations", data / "annotations", "--mixed-galleries", "none"]
    words = ["evaluate", f"{page_class}:make_align", *words, "--out", tmp_path / "out", "--no-report"]
    assert main([str(word) for word in words]) == 0
    tasks = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]
    assert {"clean", "danger"} <= tasks["image_to_text"].keys()
