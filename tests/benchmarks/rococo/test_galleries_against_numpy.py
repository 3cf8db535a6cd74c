"""Mixed and corrupted galleries asked together, end to end, beside similarities of images made one by one.

Every image is mixed or corrupted here on its own, by its name, and ranked by NumPy: an image, a caption or a group that
lands in another row changes a figure.
"""

import io
from statistics import mean, stdev

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.runner import evaluate_model
from rococo_jax.perturb.images.corruptions import find_corruption
from rococo_jax.perturb.images.image_folders import image_id
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.world import noise, write_world

IMAGES, SEEDS, RATIO = 14, (1, 10), 0.7


def read(path) -> Image.Image:
    return Image.open(path).convert("RGB")


def squashed(path) -> np.ndarray:
    return np.asarray(read(path).resize((384, 384), Image.Resampling.BICUBIC))


def as_jpeg(pixels: np.ndarray) -> Image.Image:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return Image.open(file).convert("RGB")


def corrupted(path, name: str, kind: str, severity: int) -> Image.Image:
    image = read(path)
    scale = 224 / min(image.size)
    width, height = (max(224, round(side * scale)) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    cut = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + 224, top + 224))
    ids = np.array([image_id(name)], np.int64)
    (pixels,) = find_corruption(kind)(np.asarray(cut)[None], severity, jax.random.key(0), ids=ids)
    return Image.fromarray(np.asarray(pixels))


def figures(queries: np.ndarray, gallery: np.ndarray, right: np.ndarray, altered_from: int | None = None) -> dict:
    """R@1, R@5 and the share of queries with an altered item first; `right` is (queries, gallery)."""
    order = (queries @ gallery.T).argsort(axis=1)[:, ::-1]
    hits = np.take_along_axis(right, order, axis=1)
    found = {f"r{k}": 100 * hits[:, :k].any(axis=1).mean() for k in (1, 5)}
    return found | ({} if altered_from is None else {"fr1": 100 * (order[:, 0] >= altered_from).mean()})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    def picture(number, random):
        return noise(5, 6)(number, random).resize((240, 230 + number))

    captions = [random_captions(6 if number == 3 else 5, number, 5) for number in range(IMAGES)]
    folder = tmp_path_factory.mktemp("galleries")
    write_world(folder, captions, picture=picture, altered={"danger": "{} tree".format})
    encoder = tiny_encoder()
    settings = Settings(
        mixed_galleries=(f"mix_{RATIO}",), seeds=SEEDS, corruptions=("contrast", "gaussian_noise"), severities=(4,)
    )
    benchmarks = open_benchmarks(settings, images=folder / "images", annotations=folder / "annotations")
    results = evaluate_model(EncoderModel(encoder), benchmarks, settings, EmbeddingCache(folder / "cache")).results
    paths = sorted((folder / "images").iterdir())
    texts = encoder.encode_text([text for each in captions for text in each])
    owner = np.repeat(np.arange(IMAGES), [len(each) for each in captions])
    return results["tasks"], encoder, paths, texts, owner


def test_recall_among_original_and_mixed_images_matches_numpy(world):
    tasks, encoder, paths, texts, owner = world
    names, originals = [path.name for path in paths], encoder.encode_image([read(path) for path in paths])
    of_seeds = []
    for seed in SEEDS:
        plan = make_plan(names, "mix", RATIO, seed)
        mixed, places = [], {plan.images[index]: place for place, index in enumerate(plan.first)}
        for name in names:
            pair = plan.first[places[name]], plan.partner[places[name]]
            own, other = (squashed(paths[index]) / np.float32(255) for index in pair)
            blend = np.float32(RATIO) * own + np.float32(1 - RATIO) * other
            mixed.append(as_jpeg(np.floor(255 * blend + np.float32(0.5)).astype(np.uint8)))
        gallery = np.concatenate([originals, encoder.encode_image(mixed)])
        right = owner[:, None] == np.concatenate([np.arange(IMAGES), np.full(IMAGES, -1)])
        # The mixed image in row i is named after image i.
        own_first = ((texts @ gallery.T).argmax(axis=1) - IMAGES == owner).mean()
        of_seeds.append({**figures(texts, gallery, right, altered_from=IMAGES), "own": 100 * own_first})
    found = tasks["text_to_image"][f"mix_{RATIO}"]
    for name in ("r1", "r5", "fr1"):
        each = [values[name] for values in of_seeds]
        assert found[name] == pytest.approx(mean(each)), name
        assert found[f"{name}_std"] == pytest.approx(stdev(each)), name
    assert found["fr1"] > 10
    own = mean(values["own"] for values in of_seeds)
    assert found["top1_own_altered"] == pytest.approx(own)
    assert found["top1_other_altered"] == pytest.approx(found["fr1"] - own)


@pytest.mark.parametrize("kind", ["contrast", pytest.param("gaussian_noise", marks=pytest.mark.slow)])
def test_corrupted_images_replace_the_originals(kind, world):
    tasks, encoder, paths, texts, owner = world
    images = encoder.encode_image([corrupted(path, path.name, kind, 4) for path in paths])
    own = np.arange(IMAGES)[:, None] == owner[None]
    expected = {"image_to_text": figures(images, texts, own), "text_to_image": figures(texts, images, own.T)}
    for task, values in expected.items():
        assert {name: tasks[task][f"{kind}_4"][name] for name in values} == pytest.approx(values)
