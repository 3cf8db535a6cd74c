"""Compare a torch CLIP with its conversion, and refuse bad encoders."""

import json
import types
import weakref

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import rococo_jax
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data import images as images_module
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import ForeignModel, foreign_model, load_encoder
from rococo_jax.encoders.foreign import as_numpy
from tests.support import reference_models
from tests.support.models import encoder_of, read_model
from tests.support.reference_models import saved, torch
from tests.support.refusals import refused
from tests.support.tiny import WORDS, tiny_spec, tiny_tokenizer
from tests.support.world import noise, write_world

pytestmark = pytest.mark.quick  # ranks and messages, however the programs are compiled
BaseModelOutputWithPooling = pytest.importorskip("transformers.modeling_outputs").BaseModelOutputWithPooling
IMAGES = 6
# Not 2, for which `transformers` pools at the highest id: captions that go on after it would have equal vectors, and
# rounding would decide which of them ranks first.
END = 299
CLASS = """
import numpy as np
import tokenizers
import torch
import transformers

class Clip:
    name = "torch-clip"

    def __init__(self):
        self.model = transformers.CLIPModel.from_pretrained({folder!r}).eval()
        self.tokenizer = tokenizers.Tokenizer.from_file({tokenizer!r})
        self.tokenizer.enable_padding(pad_id=0)

    def encode_image(self, images):
        sizes = [[30 * side // min(image.size) for side in image.size] for image in images]
        boxes = [((width - 30) // 2, (height - 30) // 2) for width, height in sizes]
        zipped = zip(images, sizes, boxes)
        images = [image.resize(size, 3).crop((x, y, x + 30, y + 30)) for image, size, (x, y) in zipped]
        pixels = (np.stack([np.asarray(image, np.float32) for image in images]) / 255 - 0.5) / 0.25
        return self.model.get_image_features(torch.from_numpy(pixels.transpose(0, 3, 1, 2))).pooler_output

    def encode_text(self, texts):
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        return self.model.get_text_features(torch.tensor(ids)).pooler_output

def make_clip():
    return Clip()
"""


class Colours:
    """A model that sees nothing but mean colours, and reads nothing but letters."""

    def __init__(self, change=lambda vectors: vectors):
        self.change = change

    def encode_image(self, images):
        return self.change(np.stack([np.asarray(image, float).mean((0, 1)) for image in images]) + 1)

    def encode_text(self, texts):
        return np.array([[text.count("a") + 1, text.count("e"), len(text)] for text in texts], float)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images, captions and one altered variant."""
    rng = np.random.default_rng(0)
    captions = [[" ".join(rng.choice(WORDS, 4)) for _ in range(5)] for _ in range(IMAGES)]
    altered = {"danger": "{} car".format}
    return write_world(tmp_path_factory.mktemp("data"), captions, picture=noise(6, 8, 8), altered=altered)


def evaluate(data, encoder, **settings):
    return rococo_jax.evaluate(encoder, data / "images", data / "annotations", mixed_galleries=(), **settings)


def test_an_object_with_two_methods_is_evaluated(data, tmp_path):
    results = evaluate(data, Colours(), out=tmp_path)
    assert results["model"] == "Colours" and results["fingerprint"]["model"]["fingerprint"] is None
    rows = pq.read_table(tmp_path / "per_query.parquet").to_pylist()
    items = json.loads((data / "annotations" / "danger.json").read_text())
    images = Colours().encode_image([Image.open(data / "images" / item["image"]) for item in items])
    texts = Colours().encode_text([text for item in items for text in item["caption"]])
    # Which caption is nearest to an image does not depend on the length of the image's vector.
    best = (images @ (texts / np.linalg.norm(texts, axis=1, keepdims=True)).T).argmax(axis=1)
    fooled = [row["top1_kind"].endswith("altered") for row in rows if row["variant"] == "danger"]
    assert fooled == (best % 10 >= 5).tolist()


def test_embeddings_are_cached_if_a_fingerprint_identifies_the_state_of_the_model(data, tmp_path):
    class Known(Colours):
        def fingerprint(self):
            return "known"

    evaluate(data, Colours(), out=tmp_path / "out", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.npy"))
    calls = []
    again = Colours(lambda vectors: calls.append(len(vectors)) or vectors)
    evaluate(data, again, out=tmp_path / "out", cache=tmp_path / "cache")
    assert calls, "results of an unknown state were taken as read"
    evaluate(data, Known(), cache=tmp_path / "known")
    parts = tmp_path.glob("known/**/*.npy")
    assert len([path for path in parts if "index" not in path.relative_to(tmp_path).parts]) == 2
    silent = Known(lambda vectors: pytest.fail("embedded again"))
    assert evaluate(data, silent, cache=tmp_path / "known")["model"] == "Known"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda vectors: vectors[:-1], r"encode_image: found shape \(5, 3\); wanted \(6, dim\)"),
        (lambda vectors: vectors[0], r"shape \(3,\)"),
        (lambda vectors: vectors.astype(int), "embeddings of int64; wanted floating-point"),
        (lambda vectors: vectors * np.nan, "NaN or infinite values in row 0"),
        (lambda vectors: vectors * 0, "only zeros in row 0"),
        (lambda vectors: vectors[:, :2], "2 for images and 3 for texts"),
        (lambda vectors: 1 / 0, "an error, ZeroDivisionError"),
        (lambda vectors: "text", "shape"),
        (lambda vectors: None, "found a NoneType with no attributes"),
        (object(), "without encode_image"),
        (lambda vectors: BaseModelOutputWithPooling(pooler_output=np.zeros(3)),
         r"a BaseModelOutputWithPooling with pooler_output; wanted an array \(6, dim\), one row for each item"),
    ],
)  # fmt: skip
def test_bad_embeddings_and_objects_without_the_methods_are_refused(data, change, said):
    refused(said, evaluate, data, change if said.startswith("without") else Colours(change))


@pytest.mark.parametrize(("batch_size", "most"), [(None, 32), (1, 1), (np.int64(7), 7)])
def test_pairs_are_scored_in_batches_of_the_size_that_the_object_declares(batch_size, most):
    class Pairs:
        counts = ()

        def score_pairs(self, images, texts):
            self.counts = (*self.counts, len(texts))
            return np.arange(len(texts), dtype=float)

    pairs = Pairs()
    pairs.batch_size = batch_size
    places = np.zeros(40, int), np.arange(40)
    ForeignModel(pairs).score([None], list(map(str, range(40))), places, lambda count: None)
    assert max(pairs.counts) == most


def test_photographs_are_in_memory_only_for_a_few_pairs_at_once(monkeypatch):
    """Each takes 40 kB, and the limit is 140 kB."""
    for module in (images_module, foreign_model):
        monkeypatch.setattr(module, "MOST_BYTES", 140_000)
    made, most, calls = [], 0, []

    def photographs(count: int):
        nonlocal most
        for number in range(count):
            image = Image.new("RGB", (100, 100), (number, 0, 0))
            made.append(weakref.ref(image))
            yield image
            most = max(most, sum(reference() is not None for reference in made))

    def score_pairs(images, texts):
        calls.append(len({id(image) for image in images}))
        return [image.getpixel((0, 0))[0] + len(text) / 100 for image, text in zip(images, texts, strict=True)]

    rng = np.random.default_rng(0)
    image, text = rng.permutation(np.repeat(np.arange(40), 5)), rng.integers(0, 9, 200)
    texts = ["x" * number for number in range(9)]
    scorer = ForeignModel(types.SimpleNamespace(name="mine", score_pairs=score_pairs))
    scores = scorer.score(photographs(40), texts, (image, text), lambda count: None)
    np.testing.assert_allclose(scores, image + text / 100, atol=1e-5)
    assert most <= 7 and max(calls) <= 4

    def encode_image(images):
        calls.append(len(images))
        return np.ones((len(images), 4), np.float32)

    encoder = types.SimpleNamespace(name="mine", encode_image=encode_image, encode_text=encode_image)
    for at_once, expected in ((None, 3), (8, 8)):
        most, calls[:] = 0, []
        loaded = ForeignModel(encoder, None, None, at_once)
        assert loaded.image_features(photographs(40)).shape == (40, 4)
        assert max(calls) == expected and most <= 2 * expected + 2


@pytest.mark.parametrize("batch_size", [0, -3, 2.5, "8", lambda: 8])
def test_a_batch_size_that_is_not_a_positive_number_is_refused(batch_size):
    pairs = types.SimpleNamespace(name="mine", batch_size=batch_size, score_pairs=lambda images, texts: [])
    refused("mine: batch_size: found .*; wanted a whole number, at least 1, or None", ForeignModel, pairs)


def test_a_warning_reports_embeddings_that_differ_between_calls(data, capsys):
    rng = np.random.default_rng(0)
    evaluate(data, Colours(lambda vectors: vectors + rng.normal(size=vectors.shape)))
    assert "other embeddings for the same input in two calls" in capsys.readouterr().err
    evaluate(data, Colours())
    assert "two calls" not in capsys.readouterr().err


def test_arrays_of_other_frameworks_are_read():
    ones = torch.ones((2, 3), dtype=torch.bfloat16, requires_grad=True)
    assert as_numpy(ones).dtype == np.float32 and as_numpy(ones).shape == (2, 3)
    assert as_numpy([[1.0, 2.0]]).shape == (1, 2)


def test_our_encoder_class_fulfils_the_encoder_interface():
    tiny = encoder_of(tiny_spec())
    assert load_encoder(tiny) is tiny and isinstance(tiny.fingerprint(), str)
    assert isinstance(load_encoder(Colours()), ForeignModel)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nothing_here.py:make", "nothing there; wanted a Python file"),
        ("models.py:make_clop", "no attribute 'make_clop'; it has"),
        ("models.py:NUMBER", "a int; wanted a function that returns an encoder"),
        ("models.py:raises", "an error, RuntimeError: no weights"),
        ("models.py:empty", "without encode_image"),
        ("no_such_package_xyz:make", "ModuleNotFoundError"),
        ("broken.py:make", "SyntaxError"),
    ],
)
def test_an_unusable_factory_is_reported_in_one_line(data, tmp_path, monkeypatch, refusal, source, said):
    monkeypatch.chdir(tmp_path)
    code = "NUMBER = 3\ndef raises(): raise RuntimeError('no weights')\ndef empty(): return object()\n"
    (tmp_path / "models.py").write_text(code)
    (tmp_path / "broken.py").write_text("def make(:\n")
    folders = ["--images", str(data / "images"), "--annotations", str(data / "annotations")]
    error = refusal("evaluate", source, *folders, "--out", "out")
    assert said in error.splitlines()[-1] and "Traceback" not in error


@pytest.mark.slow
def test_a_torch_clip_gives_the_same_ranks_as_its_conversion(data, tmp_path, monkeypatch):
    """Equal weights, one leaderboard: RoCOCO with a mixed gallery and a corruption, through the command."""
    text = {"vocab_size": 300, "max_position_embeddings": 24, "eos_token_id": END}
    theirs = saved(reference_models.clip(text=text), tmp_path / "theirs")
    ours = read_model(theirs)
    ours.tokenizer = tiny_tokenizer(END)
    ours.preprocessing = Preprocessing(shortest_edge=30, crop_size=(30, 30), mean=(0.5,) * 3, std=(0.25,) * 3)
    save_model(tmp_path / "ours", ours)
    code = CLASS.format(folder=str(theirs), tokenizer=str(tmp_path / "ours" / "tokenizer.json"))
    (tmp_path / "my_models.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    folders = ["--images", str(data / "images"), "--annotations", str(data / "annotations"), "--out", "out"]
    asked = ["--seeds", "1", "--mixed-galleries", "mix_0.9", "--corruptions", "contrast", "--severities", "3"]
    assert main(["evaluate", "my_models.py:make_clip", "ours", *folders, *asked, "--no-cache"]) == 0
    rows = {}
    for name in ("make_clip", "ours"):
        table = pq.read_table(tmp_path / "out" / name / "per_query.parquet").to_pylist()
        rows[name] = [(row["task"], row["variant"], row["query"], row["rank"], row["top1_text"]) for row in table]
    assert rows["make_clip"] == rows["ours"] and len({row[3] for row in rows["ours"]}) > 3
    board = (tmp_path / "out" / "report.md").read_text()
    assert "torch-clip" in board and "ours" in board
