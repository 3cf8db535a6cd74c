"""`rococo attention`: maps are the reference's weights, boxes lie where the model sees them, a page stands alone."""

import base64
import dataclasses
import io
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from scipy.ndimage import binary_dilation

from rococo_jax.benchmarks.rococo.published_mixing import SIDE, make_plan
from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.cli.main import main
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.models import ModelSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.studies import attention as study
from rococo_jax.studies.attention import Pair, attention_rows, box_coverage, choose_pairs, overlay, patch_maps
from tests.support.pages import Page
from tests.support.random_inputs import random_pixels
from tests.support.tiny import drawn_parameters, tiny_encoder, tiny_spec
from tests.support.world import noise, write_pictures

pytestmark = pytest.mark.quick  # the tolerances hold however the programs are compiled
rows_of = nnx.jit(attention_rows)


def with_pooling(pooling: str, class_token: bool = True) -> Encoder:
    """The tiny model with another pooling of its image tower; a head of its own where the vector is longer."""
    spec = tiny_spec()
    vision = dataclasses.replace(spec.vision, pooling=pooling, class_token=class_token)
    return tiny_encoder(spec=ModelSpec(vision, spec.text, spec.vision_head, spec.text_head))


@pytest.mark.parametrize(
    ("pooling", "class_token"),
    [
        ("cls", True), ("attention", False),
        pytest.param("mean", True, marks=pytest.mark.slow), pytest.param("mean", False, marks=pytest.mark.slow),
        pytest.param("cls+mean", True, marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_attention_rows_sum_to_one_over_tokens_and_maps_over_patches(pooling, class_token):
    encoder = with_pooling(pooling, class_token)
    rows = np.asarray(rows_of(encoder.model.vision, random_pixels(32)))
    assert rows.shape == (3, 16 + class_token) and (rows > 0).all()
    # Seventeen float32 weights that a softmax has brought to sum 1.
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
    images = np.random.default_rng(0).integers(0, 256, (19, 32, 32, 3), np.uint8)
    attention = patch_maps(encoder, images)
    assert attention.shape == (19, 4, 4)
    np.testing.assert_allclose(attention.sum((1, 2)), 1, atol=1e-6)


@pytest.mark.parametrize("family", ["clip", "dinov2", "siglip"])
def test_attention_of_the_class_token_or_pooling_probe_matches_the_reference(family, tmp_path):
    from tests.support import reference_models as reference

    model, pixels = getattr(reference, family)(), random_pixels(30)
    ours = load_model(reference.saved(model, tmp_path / family)).model
    theirs = model if family == "dinov2" else model.vision_model
    theirs.set_attn_implementation("eager")
    with reference.torch.no_grad():
        seen = theirs(reference.torch_pixels(pixels), output_attentions=True)
        weights = seen.attentions[-1]
        if family == "siglip":
            tokens, head = seen.last_hidden_state, theirs.head
            probe = head.probe.repeat(len(tokens), 1, 1)
            _, weights = head.attention(probe, tokens, tokens, need_weights=True, average_attn_weights=False)
    # Softmax weights lie in [0, 1]; float32 sums in another order.
    np.testing.assert_allclose(rows_of(ours.vision, pixels), weights[:, :, 0].mean(1).numpy(), rtol=0, atol=1e-5)


SQUARES = Preprocessing(exact_size=(224, 224))
CROPPED = Preprocessing(shortest_edge=256, crop_size=(224, 224))


def test_a_box_covers_its_share_of_the_area():
    spec = dataclasses.replace(tiny_spec().vision, image_size=224, patch_size=14)
    for box in ((0, 0, 121, 121), (300, 100, 384, 221), (5, 7, 9, 11), (0, 0, SIDE, SIDE)):
        coverage = box_coverage(box, SQUARES, spec)
        area = (box[2] - box[0]) * (box[3] - box[1]) / SIDE**2
        # Pillow averages over whole source pixels: up to a quarter of one lost along each of four edges of 121.
        assert coverage.mean() == pytest.approx(area, abs=4 * 0.25 * 121 / SIDE**2)
        assert coverage.min() >= 0 and coverage.max() <= 1


def test_a_box_is_transformed_to_the_pixels_that_the_model_sees():
    """A white box in a black image, through the model's own preprocessing, is bright in the covered patches alone."""
    spec = dataclasses.replace(tiny_spec().vision, image_size=224, patch_size=32)
    for preprocessing in (SQUARES, CROPPED):
        for box in ((0, 0, 121, 121), (140, 100, 261, 221), (300, 250, 384, 384)):
            image = np.zeros((SIDE, SIDE, 3), np.uint8)
            image[box[0] : box[2], box[1] : box[3]] = 255
            seen = preprocessing.resize(Image.fromarray(image))[..., 0].reshape(7, 32, 7, 32).mean((1, 3)) / 255
            # Bicubic rings at the box's edge, within two pixels of a patch's 32.
            np.testing.assert_allclose(box_coverage(box, preprocessing, spec), seen, atol=0.03)
    middle = Preprocessing(shortest_edge=448, crop_size=(224, 224))
    assert not box_coverage((0, 0, 80, 80), middle, spec).any()


def test_numbers_are_shares_of_attention_by_area_and_their_overlap():
    rng, even = np.random.default_rng(0), np.full((6, 6), 1 / 36)
    coverage, inside = rng.uniform(size=(6, 6)), np.zeros((6, 6))
    inside[2, 3], seen = 1, np.zeros((2, 6, 6, 3), np.uint8)
    area, on, before, ratio, ratio_before, overlap = Pair("a", "b", seen, np.stack([even, even]), coverage).numbers
    assert area == pytest.approx(100 * coverage.mean()) == pytest.approx(on) == pytest.approx(before)
    assert (ratio, ratio_before, overlap) == pytest.approx((1, 1, 100))
    moved = Pair("a", "b", seen, np.stack([inside, np.roll(inside, 1)]), inside).numbers
    assert moved == pytest.approx([100 / 36, 0, 100, 0, 36, 0])
    assert np.isnan(Pair("a", "b", seen, np.stack([even, inside]), None).numbers).tolist() == [True] * 5 + [False]


def test_image_regions_without_attention_are_dark():
    strength = np.zeros((4, 4))
    strength[1, 2] = 4
    drawn = overlay(np.full((64, 64, 3), 128, np.uint8), strength).astype(int).sum(-1)
    brightness = drawn.reshape(4, 16, 4, 16).mean((1, 3))
    assert np.unravel_index(brightness.argmax(), brightness.shape) == (1, 2)
    assert brightness[1, 2] > 2 * brightness[3, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Nine pictures of different sizes, below a folder."""

    def picture(number, random):
        size = (60 + 9 * number, 50 + 4 * number)
        return noise(6, 8)(number, random).resize(size, Image.Resampling.BICUBIC)

    root = tmp_path_factory.mktemp("pictures")
    write_pictures(root / "below", [f"{number}.png" for number in range(9)], picture)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(path, tiny_encoder(name="tiny"))
    return path


@pytest.fixture(scope="module")
def files(folder):
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.png"))}


def test_a_patched_pair_of_images_differs_only_inside_the_box(files):
    plan = make_plan(list(files), "patch", 0.8, 3, "strict")
    for pair in choose_pairs(tiny_encoder(), plan, files, 5):
        assert pair.image != pair.partner
        changed = (pair.pixels[0] != pair.pixels[1]).any(-1).reshape(4, 8, 4, 8).any((1, 3))
        # Bicubic resizing carries the box's edge two source pixels further; a patch here is 96 of them.
        touched = pair.coverage > 0
        assert changed[pair.coverage > 0.1].all() and not changed[~binary_dilation(touched)].any()


def test_the_numbers_reveal_a_tower_that_attends_to_bright_patches(tmp_path, monkeypatch):
    """A planted tower whose attention is a patch's brightness: the numbers must say what it does."""
    files = {name: tmp_path / name for name in ("dark.png", "bright.png")}
    for path, level in zip(files.values(), (10, 250), strict=True):
        Image.new("RGB", (80, 80), (level,) * 3).save(path)

    def brightness(tower, pixels):
        rows = (2 + pixels).mean(-1).reshape(-1, 4, 8, 4, 8).mean((2, 4)).reshape(-1, 16)
        return jnp.concatenate([jnp.zeros((len(rows), 1)), rows], axis=1)

    monkeypatch.setattr(study, "attention_rows", brightness)
    plan = make_plan(list(files), "patch", 0.9, 1, "strict")
    dark, bright = choose_pairs(tiny_encoder(), plan, files, 2)
    assert dark.numbers[4] == pytest.approx(1) and bright.numbers[4] == pytest.approx(1)
    assert dark.numbers[3] > 3 and bright.numbers[3] < 0.3


def test_images_mixed_with_themselves_are_skipped(files):
    plans = (make_plan(list(files), "mix", 0.9, seed, "paper") for seed in range(12))
    plan = next(plan for plan in plans if plan.self_mixed)
    pairs = choose_pairs(tiny_encoder(), plan, files, 50)
    assert len(pairs) == len(files) - plan.self_mixed and all(pair.coverage is None for pair in pairs)


def page_of(model, folder, out, *more) -> Page:
    assert main(["attention", str(model), "--images", str(folder), "--out", str(out), *map(str, more)]) == 0
    return Page(out.read_text(encoding="utf-8"))


def test_the_page_needs_no_other_file_and_is_reproducible(model, folder, tmp_path, capsys):
    page = page_of(model, folder, tmp_path / "a.html", "--count", 3)
    assert "3 images, patch_0.9, seed 1" in capsys.readouterr().out
    source = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert len(page.all("article")) == 3 and len(page.all("img")) == 6
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", source) and "url(" not in source and "@import" not in source
    assert "pooled by cls" in page.text() and "Ratio" in page.text("table") and "Mean" in page.text("table")
    assert "| Image | Box, % of area |" in (tmp_path / "a.md").read_text(encoding="utf-8")
    seen = Image.open(io.BytesIO(base64.b64decode(page.all("img")[0]["src"].partition(",")[2])))
    assert seen.size == (32, 32)  # as the model sees it
    page_of(model, folder, tmp_path / "b.html", "--count", 3)
    assert source == (tmp_path / "b.html").read_text(encoding="utf-8")


def test_mixed_images_have_no_box_and_captions_select_the_images(model, folder, tmp_path):
    items = [{"image": f"below/{number}.png", "caption": ["a dog"]} for number in (4, 2, 7, 99)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    more = "--captions", tmp_path / "captions.json", "--method", "mix", "--ratio", 0.6, "--protocol", "strict"
    table = page_of(model, folder, tmp_path / "a.html", *more).text("table")
    assert "Ratio" not in table and "Overlap" in table
    assert 0 < table.index("below/4.png") < table.index("below/2.png") and "below/7.png" in table


@pytest.fixture(scope="module")
def bad_inputs(tmp_path_factory):
    """A folder of one image, one of files that are none, and a model without an image tower."""
    root, whole = tmp_path_factory.mktemp("bad"), tiny_encoder(name="text")
    write_pictures(root / "lonely", ["only.png"])
    for path in write_pictures(root / "spoilt", ["0.png", "1.png", "2.png"]):
        path.write_bytes(b"no image")
    spec = ModelSpec(None, whole.spec.text, text_head=whole.spec.text_head)
    text_only = build_model(spec, drawn_parameters(spec))
    save_model(root / "text", Encoder(text_only, None, whole.tokenizer, mesh=make_mesh(jax.devices()[:1])))
    return root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{model} --images {folder} --out a.pdf", "--out"),
        ("{model} --images {folder} --out a.html --count 0", "--count"),
        ("{model} --images {folder} --out a.html --ratio 1.5", "ratio"),
        ("{model} --images lonely --out a.html", "two images"),
        ("{model} --images gone --out a.html", "gone"),
        ("{model} --images spoilt --out a.html", "not an image"),
        ("text --images {folder} --out a.html", "image tower"),
        ("none --images {folder} --out a.html", "none"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(
    model, folder, bad_inputs, monkeypatch, refusal, words, said
):
    monkeypatch.chdir(bad_inputs)
    error = refusal("attention", *words.format(model=model, folder=folder).split())
    assert error.count("\n") == 1 and said in error and not [*bad_inputs.glob("a.*")]
