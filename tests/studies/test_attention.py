"""`rococo attention`: maps are the reference's weights, boxes lie where the model sees them, a page stands alone."""

import base64
import dataclasses
import io
import re
from functools import partial

import jax
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
    GLOW,
    attention_rows,
    box_coverage,
    choose_pairs,
    overlap,
    overlay,
    patch_maps,
    share_on,
    whose_attention,
)
from tests.support.random_inputs import random_pixels
from tests.support.tiny import tiny_encoder, tiny_spec

pytestmark = pytest.mark.quick  # the tolerances hold however the programs are compiled
rows_of = nnx.jit(attention_rows)


def with_pooling(pooling: str, class_token: bool = True) -> Encoder:
    """The tiny model with another pooling of its image tower; a head of its own where the vector is longer."""
    spec = tiny_spec()
    vision = dataclasses.replace(spec.vision, pooling=pooling, class_token=class_token)
    return tiny_encoder(spec=ModelSpec(vision, spec.text, spec.vision_head, spec.text_head))


@pytest.mark.parametrize(
    ("pooling", "class_token", "words"),
    [
        ("cls", True, "from the class token"),
        ("cls+mean", True, "the mean of the patches too"),
        ("mean", True, "all patches as queries"),
        ("mean", False, "all patches as queries"),
        ("attention", False, "the attention pooling's weights"),
    ],
)
def test_rows_sum_to_one_over_tokens_and_maps_over_patches(pooling, class_token, words):
    encoder = with_pooling(pooling, class_token)
    rows = np.asarray(rows_of(encoder.model.vision, random_pixels(32)))
    assert rows.shape == (3, 16 + class_token) and (rows > 0).all()
    # Seventeen float32 weights that a softmax has brought to sum 1.
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
    images = np.random.default_rng(0).integers(0, 256, (19, 32, 32, 3), np.uint8)
    attention, kept = patch_maps(encoder, images)
    assert attention.shape == (19, 4, 4)
    np.testing.assert_allclose(attention.sum((1, 2)), 1, atol=1e-6)
    assert (kept > 0.01).all() if class_token else (np.abs(kept) < 1e-6).all()
    assert words in whose_attention(encoder.spec.vision)


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
    found = nnx.jit(lambda tower, pixels: tower.pooling.weights(tower.tokens(pixels)))(ours.vision, pixels)
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


def test_even_attention_falls_on_a_box_as_its_area_does():
    coverage = np.random.default_rng(0).uniform(size=(6, 6))
    assert share_on(np.full((6, 6), 1 / 36), coverage) == pytest.approx(coverage.mean())
    inside = np.zeros((6, 6))
    inside[2, 3] = 1
    assert share_on(inside, inside) == 1 and share_on(np.roll(inside, 1), inside) == 0


def test_overlap_is_one_for_equal_maps_and_nought_for_disjoint_ones():
    first = np.random.default_rng(0).dirichlet(np.ones(16)).reshape(4, 4)
    assert overlap(first, first) == pytest.approx(1)
    half = np.eye(4) / 4
    assert overlap(half, np.roll(half, 1, axis=0)) == 0
    assert overlap(first, half) == pytest.approx(overlap(half, first))


def test_glow_grows_lighter_all_the_way_and_no_attention_leaves_the_picture_dark():
    lightness = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in GLOW]
    assert lightness == sorted(lightness)
    grey, attention = np.full((64, 64, 3), 128, np.uint8), np.zeros((4, 4))
    attention[1, 2] = 1
    drawn = overlay(grey, attention, 4.0).astype(int).sum(-1)
    brightness = drawn.reshape(4, 16, 4, 16).mean((1, 3))
    assert np.unravel_index(brightness.argmax(), brightness.shape) == (1, 2)
    assert brightness[1, 2] > 2 * brightness[3, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Nine pictures of different sizes, below a folder."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    (root / "below").mkdir()
    for number in range(9):
        pixels = rng.integers(0, 256, (6, 8, 3), np.uint8)
        size = (60 + 9 * number, 50 + 4 * number)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(root / "below" / f"{number}.png")
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
        changed = (pair.original != pair.mixed).any(-1).reshape(4, 8, 4, 8).any((1, 3))
        # Bicubic resizing carries the box's edge two source pixels further; a patch here is 96 of them.
        touched = pair.coverage > 0
        grown = np.pad(touched, 1)
        near = sum(np.roll(grown, shift, (0, 1)) for shift in ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)))[1:-1, 1:-1]
        assert changed[pair.coverage > 0.1].all() and not changed[near == 0].any()
        assert pair.ratios[1] == pytest.approx(pair.shares[1] / pair.coverage.mean())


def test_a_tower_that_looks_at_bright_patches_is_caught_looking_at_a_bright_box(folder, tmp_path, monkeypatch):
    """A planted tower whose attention is a patch's brightness: the numbers must say what it does."""
    from rococo_jax.studies import attention

    for name, level in (("dark.png", 10), ("bright.png", 250)):
        Image.new("RGB", (80, 80), (level,) * 3).save(tmp_path / name)
    files = {name: tmp_path / name for name in ("dark.png", "bright.png")}

    def brightness(graph, preprocessing, state, images):
        rows = images.astype(np.float64).mean(-1).reshape(-1, 4, 8, 4, 8).mean((2, 4)).reshape(-1, 16)
        rows = np.concatenate([np.zeros((len(rows), 1)), rows], axis=1)
        return rows / rows.sum(1, keepdims=True)

    monkeypatch.setattr(attention, "_rows", brightness)
    plan = make_plan(list(files), "patch", 0.9, 1, "strict")
    dark, bright = choose_pairs(tiny_encoder(), plan, files, 2)
    assert dark.ratios[0] == pytest.approx(1) and bright.ratios[0] == pytest.approx(1)
    assert dark.ratios[1] > 4 and bright.ratios[1] < 0.3


def test_images_mixed_with_themselves_are_passed_over(folder):
    files = files_in(folder)
    for seed in range(12):
        plan = make_plan(list(files), "mix", 0.9, seed, "paper")
        pairs = choose_pairs(tiny_encoder(), plan, files, 50)
        assert len(pairs) == len(files) - plan.self_mixed
        if plan.self_mixed:
            break
    assert plan.self_mixed
    assert not any(pair.has_box for pair in pairs)


def attention(model, folder, out, *more) -> int:
    return main(["attention", str(model), "--images", str(folder), "--out", str(out), *map(str, more)])


def test_page_stands_alone_and_is_the_same_every_time(model, folder, tmp_path, capsys):
    from tests.report.test_page import Page

    assert attention(model, folder, tmp_path / "a.html", "--count", 3) == 0
    assert "3 images, patch_0.9, seed 1" in capsys.readouterr().out
    source = (tmp_path / "a.html").read_text(encoding="utf-8")
    page = Page(source)
    assert len(page.all("article")) == 3 and len(page.all("img")) == 12
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", source) and "url(" not in source and "@import" not in source
    assert "from the class token" in page.text() and "ratio" in page.text("article")
    seen = Image.open(io.BytesIO(base64.b64decode(page.all("img")[0]["src"].partition(",")[2])))
    assert seen.size == (32, 32)  # as the model sees it
    assert attention(model, folder, tmp_path / "b.html", "--count", 3) == 0
    assert source == (tmp_path / "b.html").read_text(encoding="utf-8")


def test_blends_have_no_box_and_captions_lead_their_images(model, folder, tmp_path):
    import json

    from tests.report.test_page import Page

    nasty = "<script>alert(1)</script> a dog"
    items = [{"image": f"below/{number}.png", "caption": [f"{nasty} {number}"]} for number in (4, 2, 7, 99)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    more = ("--captions", tmp_path / "captions.json", "--method", "mix", "--ratio", 0.6, "--protocol", "strict")
    assert attention(model, folder, tmp_path / "a.html", *more) == 0
    page = Page((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert not page.all("rect") and "ratio" not in page.text("article")
    assert "stays where it was" in page.text("article")
    titles = page.text("h3")
    assert titles.index("a dog 4") < titles.index("a dog 2") < titles.index("a dog 7")
    assert len(page.all("script")) == 1


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
