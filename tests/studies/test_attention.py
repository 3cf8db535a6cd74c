"""`rococo attention`: maps are the reference's weights, boxes lie where the model sees them, a page stands alone."""

import base64
import dataclasses
import io
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from rococo_jax.benchmarks.rococo.published_mixing import SIDE, make_plan
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.models import ModelSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.studies.attention import (
    Pair,
    attention_rows,
    box_coverage,
    choose_pairs,
    overlay,
    patch_maps,
)
from tests.support.random_inputs import random_pixels
from tests.support.tiny import tiny_encoder, tiny_spec
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
    [("cls", True), ("cls+mean", True), ("mean", True), ("mean", False), ("attention", False)],
)
def test_rows_sum_to_one_over_tokens_and_maps_over_patches(pooling, class_token):
    encoder = with_pooling(pooling, class_token)
    rows = np.asarray(rows_of(encoder.model.vision, random_pixels(32)))
    assert rows.shape == (3, 16 + class_token) and (rows > 0).all()
    # Seventeen float32 weights that a softmax has brought to sum 1.
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
    images = np.random.default_rng(0).integers(0, 256, (19, 32, 32, 3), np.uint8)
    attention = patch_maps(encoder, images)
    assert attention.shape == (19, 4, 4)
    np.testing.assert_allclose(attention.sum((1, 2)), 1, atol=1e-6)


@pytest.mark.parametrize("family", ["clip", "dinov2"])
def test_class_token_rows_are_those_of_the_reference(family, tmp_path):
    from tests.support import reference_models as reference

    model = getattr(reference, family)()
    ours = load_model(reference.saved(model, tmp_path / family)).model
    theirs = model.vision_model if family == "clip" else model
    theirs.set_attn_implementation("eager")
    pixels = random_pixels(30)
    with reference.torch.no_grad():
        weights = theirs(reference.torch_pixels(pixels), output_attentions=True).attentions[-1]
    # Softmax weights lie in [0, 1]; float32 sums in another order.
    np.testing.assert_allclose(rows_of(ours.vision, pixels), weights[:, :, 0].mean(1).numpy(), rtol=0, atol=1e-5)


def test_pooling_weights_are_those_of_the_reference(tmp_path):
    from tests.support import reference_models as reference

    model = reference.siglip()
    ours = load_model(reference.saved(model, tmp_path / "siglip")).model
    pixels = random_pixels(30)
    with reference.torch.no_grad():
        tokens = model.vision_model(reference.torch_pixels(pixels)).last_hidden_state
        head = model.vision_model.head
        probe = head.probe.repeat(len(tokens), 1, 1)
        _, weights = head.attention(probe, tokens, tokens, need_weights=True, average_attn_weights=False)
    found = nnx.jit(lambda tower, pixels: tower.pooling.mix(tower.tokens(pixels))[1][:, :, 0])(ours.vision, pixels)
    np.testing.assert_allclose(found, weights[:, :, 0].numpy(), rtol=0, atol=1e-5)  # as above
    np.testing.assert_allclose(rows_of(ours.vision, pixels), weights[:, :, 0].mean(1).numpy(), rtol=0, atol=1e-5)


SQUASHED = Preprocessing(exact_size=(224, 224))
CROPPED = Preprocessing(shortest_edge=256, crop_size=(224, 224))


def test_a_box_covers_its_share_of_the_area():
    spec = dataclasses.replace(tiny_spec().vision, image_size=224, patch_size=14)
    for box in ((0, 0, 121, 121), (300, 100, 384, 221), (5, 7, 9, 11), (0, 0, SIDE, SIDE)):
        coverage = box_coverage(box, SQUASHED, spec)
        area = (box[2] - box[0]) * (box[3] - box[1]) / SIDE**2
        # Pillow averages over whole source pixels: up to a quarter of one lost along each of four edges of 121.
        assert coverage.mean() == pytest.approx(area, abs=4 * 0.25 * 121 / SIDE**2)
        assert coverage.min() >= 0 and coverage.max() <= 1


def test_a_box_lies_where_the_model_sees_it():
    """A white box in a black image, through the model's own preprocessing, is bright in the covered patches alone."""
    spec = dataclasses.replace(tiny_spec().vision, image_size=224, patch_size=32)
    for preprocessing in (SQUASHED, CROPPED):
        for box in ((0, 0, 121, 121), (140, 100, 261, 221), (300, 250, 384, 384)):
            image = np.zeros((SIDE, SIDE, 3), np.uint8)
            image[box[0] : box[2], box[1] : box[3]] = 255
            seen = preprocessing.resize(Image.fromarray(image))[..., 0].reshape(7, 32, 7, 32).mean((1, 3)) / 255
            # Bicubic rings at the box's edge, within two pixels of a patch's 32.
            np.testing.assert_allclose(box_coverage(box, preprocessing, spec), seen, atol=0.03)


def test_a_box_outside_the_crop_is_not_seen():
    spec = dataclasses.replace(tiny_spec().vision, image_size=112, patch_size=14)
    middle = Preprocessing(shortest_edge=224, crop_size=(112, 112))
    assert not box_coverage((0, 0, 80, 80), middle, spec).any()


def test_figures_are_shares_by_area_and_how_much_stays():
    rng, even = np.random.default_rng(0), np.full((6, 6), 1 / 36)
    coverage, inside = rng.uniform(size=(6, 6)), np.zeros((6, 6))
    inside[2, 3], seen = 1, np.zeros((2, 6, 6, 3), np.uint8)
    area, on, before, ratio, ratio_before, overlap = Pair("a", "b", seen, np.stack([even, even]), coverage).figures
    assert area == pytest.approx(100 * coverage.mean()) == pytest.approx(on) == pytest.approx(before)
    assert (ratio, ratio_before, overlap) == pytest.approx((1, 1, 100))
    moved = Pair("a", "b", seen, np.stack([inside, np.roll(inside, 1)]), inside).figures
    assert moved == pytest.approx([100 / 36, 0, 100, 0, 36, 0])
    assert np.isnan(Pair("a", "b", seen, np.stack([even, inside]), None).figures).tolist() == [True] * 5 + [False]


def test_no_attention_leaves_the_picture_dark():
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


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.png"))}


def test_a_patched_pair_differs_inside_the_box_alone(folder):
    files = files_in(folder)
    encoder = tiny_encoder()
    plan = make_plan(list(files), "patch", 0.8, 3, "strict")
    for pair in choose_pairs(encoder, plan, files, 5):
        assert pair.image != pair.partner
        changed = (pair.pixels[0] != pair.pixels[1]).any(-1).reshape(4, 8, 4, 8).any((1, 3))
        # Bicubic resizing carries the box's edge two source pixels further; a patch here is 96 of them.
        touched = pair.coverage > 0
        grown = np.pad(touched, 1)
        near = sum(np.roll(grown, shift, (0, 1)) for shift in ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)))[1:-1, 1:-1]
        assert changed[pair.coverage > 0.1].all() and not changed[near == 0].any()


def test_a_tower_that_looks_at_bright_patches_is_caught_looking_at_a_bright_box(folder, tmp_path, monkeypatch):
    """A planted tower whose attention is a patch's brightness: the numbers must say what it does."""
    from rococo_jax.studies import attention

    for name, level in (("dark.png", 10), ("bright.png", 250)):
        Image.new("RGB", (80, 80), (level,) * 3).save(tmp_path / name)
    files = {name: tmp_path / name for name in ("dark.png", "bright.png")}

    def brightness(tower, pixels):
        rows = (2 + pixels).mean(-1).reshape(-1, 4, 8, 4, 8).mean((2, 4)).reshape(-1, 16)
        return jnp.concatenate([jnp.zeros((len(rows), 1)), rows], axis=1)

    monkeypatch.setattr(attention, "attention_rows", brightness)
    plan = make_plan(list(files), "patch", 0.9, 1, "strict")
    dark, bright = choose_pairs(tiny_encoder(), plan, files, 2)
    assert dark.figures[4] == pytest.approx(1) and bright.figures[4] == pytest.approx(1)
    assert dark.figures[3] > 3 and bright.figures[3] < 0.3


def test_images_mixed_with_themselves_are_passed_over(folder):
    files = files_in(folder)
    for seed in range(12):
        plan = make_plan(list(files), "mix", 0.9, seed, "paper")
        pairs = choose_pairs(tiny_encoder(), plan, files, 50)
        assert len(pairs) == len(files) - plan.self_mixed
        if plan.self_mixed:
            break
    assert plan.self_mixed
    assert all(pair.coverage is None for pair in pairs)


def attention(model, folder, out, *more) -> int:
    return main(["attention", str(model), "--images", str(folder), "--out", str(out), *map(str, more)])


def test_page_stands_alone_and_is_the_same_every_time(model, folder, tmp_path, capsys):
    from tests.report.test_page import Page

    assert attention(model, folder, tmp_path / "a.html", "--count", 3) == 0
    assert "3 images, patch_0.9, seed 1" in capsys.readouterr().out
    source = (tmp_path / "a.html").read_text(encoding="utf-8")
    page = Page(source)
    assert len(page.all("article")) == 3 and len(page.all("img")) == 6
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", source) and "url(" not in source and "@import" not in source
    assert "pooled by cls" in page.text() and "Ratio" in page.text("table") and "Mean" in page.text("table")
    assert "| Image | Box, % of area |" in (tmp_path / "a.md").read_text(encoding="utf-8")
    seen = Image.open(io.BytesIO(base64.b64decode(page.all("img")[0]["src"].partition(",")[2])))
    assert seen.size == (32, 32)  # as the model sees it
    assert attention(model, folder, tmp_path / "b.html", "--count", 3) == 0
    assert source == (tmp_path / "b.html").read_text(encoding="utf-8")


def test_blends_have_no_box_and_captions_decide_the_images(model, folder, tmp_path):
    import json

    from tests.report.test_page import Page

    items = [{"image": f"below/{number}.png", "caption": ["a dog"]} for number in (4, 2, 7, 99)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    more = ("--captions", tmp_path / "captions.json", "--method", "mix", "--ratio", 0.6, "--protocol", "strict")
    assert attention(model, folder, tmp_path / "a.html", *more) == 0
    page = Page((tmp_path / "a.html").read_text(encoding="utf-8"))
    table = page.text("table")
    assert "Ratio" not in table and "Overlap" in table
    assert 0 < table.index("below/4.png") < table.index("below/2.png") and "below/7.png" in table


def broken(model, folder, tmp_path):
    lonely, spoilt, text_only = tmp_path / "lonely", tmp_path / "spoilt", tmp_path / "text"
    lonely.mkdir()
    Image.new("RGB", (40, 40)).save(lonely / "only.png")
    spoilt.mkdir()
    for number in range(3):
        (spoilt / f"{number}.png").write_bytes(b"no image")
    whole = tiny_encoder(name="text")
    spec = ModelSpec(None, whole.spec.text, text_head=whole.spec.text_head)
    mesh = make_mesh(jax.devices()[:1])
    from rococo_jax.models import DualEncoder

    save_model(text_only, Encoder(DualEncoder(spec, rngs=nnx.Rngs(0)), None, whole.tokenizer, mesh=mesh))
    start = partial(attention, model, folder)
    return {
        "a page of another kind": (lambda: start(tmp_path / "a.pdf"), "--out"),
        "no images to show": (lambda: start(tmp_path / "a.html", "--count", 0), "--count"),
        "a ratio over one": (lambda: start(tmp_path / "a.html", "--ratio", 1.5), "ratio"),
        "one image alone": (lambda: attention(model, lonely, tmp_path / "a.html"), "two images"),
        "no folder": (lambda: attention(model, tmp_path / "gone", tmp_path / "a.html"), "gone"),
        "files that are no images": (lambda: attention(model, spoilt, tmp_path / "a.html"), "not an image"),
        "a model without an image tower": (lambda: attention(text_only, folder, tmp_path / "a.html"), "image tower"),
        "no model": (lambda: attention(tmp_path / "none", folder, tmp_path / "a.html"), "none"),
    }


def test_bad_input_is_refused_in_one_line_and_nothing_is_written(model, folder, tmp_path, capsys):
    for what, (call, named) in broken(model, folder, tmp_path).items():
        assert call() == 2, what
        said = capsys.readouterr().err.strip()
        assert "\n" not in said and named in said and "Traceback" not in said, (what, said)
    assert not list(tmp_path.glob("a.*"))
