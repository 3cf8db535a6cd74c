"""VSE-infinity: GPO and whole checkpoints against the paper's formulas in torch."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.formats.vse_infinity import read_vse_text
from rococo_jax.checkpoints.parameters import Choices
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.models.generalized_pooling import GeneralizedPooling
from rococo_jax.runtime import make_mesh
from tests.support.random_inputs import random_pixels
from tests.support.reference_models import assert_same_vectors, torch, torch_pixels
from tests.support.refusals import refused
from tests.support.vse_reference import Aggregator, Gpo, GridEncoder, ResNet, TextEncoder, perturb, save

MESH = make_mesh(jax.devices()[:1])
pytestmark = pytest.mark.quick
SIZES = {
    "vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 80,
    "max_position_embeddings": 16,
}  # fmt: skip
TEXTS = [[2, 9, 33, 3], [2, 3], [2, 41, 7, 7, 19, 28, 50, 11, 12, 13, 14, 15, 16, 17, 18, 3]]
# ResNeXt has its strides, its maximum and its groups otherwise than the release's own ResNet.
FORMS = {"resnet": (8, (2, 1, 1, 1), 1, 8), "resnext": (8, (1, 2, 1, 1), 4, 2)}


def ours_of(reference, inputs):
    """A pooling of ours that holds the weights of the reference, without a map."""
    pooling = GeneralizedPooling(inputs, inputs, dtype=jnp.float32, rngs=nnx.Rngs(0))
    for gru, suffix in ((pooling.onward, ""), (pooling.back, "_reverse")):
        for part, kind in ((gru.inputs, "ih"), (gru.states, "hh")):
            part.kernel[...] = jnp.asarray(getattr(reference.gru, f"weight_{kind}_l0{suffix}").detach().numpy().T)
            part.bias[...] = jnp.asarray(getattr(reference.gru, f"bias_{kind}_l0{suffix}").detach().numpy())
    pooling.score.kernel[...] = jnp.asarray(reference.linear.weight.detach().numpy().T)
    return pooling


def test_pooling_has_the_values_and_gradients_of_the_paper():
    reference = perturb(Gpo(), 3)
    pooling, counts = ours_of(reference, 6), [7, 1, 4]
    sets = np.random.default_rng(0).normal(size=(3, 7, 6)).astype(np.float32)
    mask = jnp.asarray(np.arange(7)[None] < np.array(counts)[:, None])
    aim = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)

    @nnx.jit
    def value_and_gradients(pooling, sets):
        def along(pooling, sets):
            return jnp.sum(pooling.pool(sets, mask) * aim)

        return pooling.pool(sets, mask), nnx.grad(along, argnums=(0, 1))(pooling, sets)

    vectors, (of_weights, of_sets) = value_and_gradients(pooling, jnp.asarray(sets))
    leaf = torch.tensor(sets, requires_grad=True)
    expected = torch.stack([reference(leaf[row, :count]) for row, count in enumerate(counts)])
    (expected * torch.tensor(aim)).sum().backward()
    np.testing.assert_allclose(vectors, expected.detach().numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(of_sets, leaf.grad.numpy(), rtol=0, atol=1e-5)
    for gru, suffix in ((of_weights.onward, ""), (of_weights.back, "_reverse")):
        for part, kind in ((gru.inputs, "ih"), (gru.states, "hh")):
            theirs = getattr(reference.gru, f"weight_{kind}_l0{suffix}").grad.numpy().T
            np.testing.assert_allclose(part.kernel[...], theirs, rtol=0, atol=1e-4)
    np.testing.assert_allclose(of_weights.score.kernel[...], reference.linear.weight.grad.numpy().T, rtol=0, atol=1e-4)


def test_the_weights_depend_on_the_size_of_a_set_alone_and_sum_to_one():
    pooling = ours_of(perturb(Gpo(), 4), 3)
    mask = np.arange(9)[None] < np.array([[9], [4], [1]])
    weights_of = nnx.jit(lambda pooling, mask: pooling.weights(mask))
    weights = np.asarray(weights_of(pooling, jnp.asarray(mask)))
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    assert (weights[~mask] == 0).all()
    np.testing.assert_allclose(weights[1, :4], weights_of(pooling, jnp.ones((1, 4), bool))[0], atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_over_grids_gives_the_reference_vectors(form, tmp_path):
    image, text = perturb(GridEncoder(ResNet(*FORMS[form]), 24), 1), perturb(TextEncoder(24, **SIZES), 2)
    options = {"backbone_source": "wsl", "input_scale_factor": 0.2, "precomp_enc_type": "backbone"}
    path = save(tmp_path / "model_best.pth", image, text, parallel=form == "resnext", **options)
    first = load_model(path, mesh=MESH, tokenizer="none")
    save_model(tmp_path / "ours", first)
    encoder = load_model(tmp_path / "ours", mesh=MESH)
    assert encoder.preprocessing.exact_size == (51, 51)
    pixels = random_pixels(51)
    ids, mask = np.zeros((3, 16), np.int32), np.arange(16)[None] < np.array([[len(text)] for text in TEXTS])
    ids[mask] = np.concatenate(TEXTS)
    run = nnx.jit(lambda model, x, i, m: (model.image_embeddings(x), model.text_embeddings(i, m)))
    images, texts = run(encoder.model, pixels, ids, mask)
    with torch.no_grad():
        assert_same_vectors(images, image(torch_pixels(pixels)))
        assert_same_vectors(texts, text(TEXTS))
    assert first.provenance["model_type"] == "vse_infinity over grids of wsl"


def test_a_detector_reads_blue_first_and_8_bit_values(tmp_path):
    image, text = perturb(GridEncoder(ResNet(4, (1, 1, 1, 1), 1, 4), 8), 1), perturb(TextEncoder(8, **SIZES), 2)
    path = save(tmp_path / "grid.pth", image, text, backbone_source="detector", input_scale_factor=0.125)
    encoder = load_model(path, mesh=MESH, tokenizer="none")
    pictures = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    # As the release: blue first, the detector's means taken off.
    theirs = torch.tensor(pictures[..., ::-1].astype(np.float32) - np.array([102.9801, 115.9465, 122.7717], np.float32))
    with torch.no_grad():
        assert_same_vectors(encoder.encode_image(pictures), image(theirs.permute(0, 3, 1, 2)))


def test_what_cannot_be_followed_is_refused(tmp_path):
    text = perturb(TextEncoder(8, **SIZES), 2)
    regions = save(tmp_path / "regions.pth", perturb(Aggregator(12, 8, regions=True)), text)
    refused("over regions, without a network for pixels", load_model, regions, mesh=MESH, tokenizer="none")
    assert read_vse_text(regions, Choices(tokenizer="none")).spec.text.features == 8
    raw = save(tmp_path / "raw.pth", perturb(Aggregator(12, 8, regions=True)), text, no_imgnorm=True)
    refused(r"opt\.no_imgnorm", load_model, raw, mesh=MESH, tokenizer="none")


@pytest.mark.thorough
def test_it_learns_which_text_belongs_to_which_image(tmp_path):
    """A few steps of the contrastive loss through both poolings, the backbone and BERT."""
    torch.manual_seed(4)
    image, text = GridEncoder(ResNet(4, (1, 1, 1, 1), 1, 4), 8), TextEncoder(8, **SIZES)
    path = save(tmp_path / "grid.pth", image, text, input_scale_factor=0.125)
    model = load_model(path, mesh=MESH, tokenizer="none").model
    pixels, mask = jnp.asarray(random_pixels(32, count=4)), jnp.ones((4, 5), bool)
    ids = jnp.asarray(np.random.default_rng(2).integers(4, 60, (4, 5)).astype(np.int32))
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.sgd(0.05)

    @jax.jit
    def step(parameters, state):
        def loss(parameters):
            model = nnx.merge(graph, parameters, rest)
            logits = 5 * model.image_embeddings(pixels) @ model.text_embeddings(ids, mask).T
            return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(4, dtype=jnp.int32)).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, value

    state, losses = optimizer.init(parameters), []
    for _ in range(80):
        parameters, state, value = step(parameters, state)
        losses.append(float(value))
    assert losses[-1] < 0.3 < 1 < losses[0]


def test_regions_of_a_file_are_embedded_for_scores(tmp_path, refusal):
    image, text = perturb(Aggregator(12, 8, regions=True), 5), perturb(TextEncoder(8, **SIZES), 6)
    path = save(tmp_path / "regions.pth", image, text, precomp_enc_type="basic")
    regions = np.random.default_rng(0).normal(size=(3, 5, 12)).astype(np.float32)
    counts = np.array([5, 2, 1])
    np.savez(tmp_path / "regions.npz", image_names=["a.jpg", "b.jpg", "mix/a.jpg"], regions=regions, counts=counts)
    captions = ["a dog", "two dogs on grass"]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(caption) + "\n" for caption in captions))
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "##s", "on", "grass", "two"]
    (folder / "vocab.txt").write_text("\n".join(words))
    command = ["embed-regions", str(path), "--regions", str(tmp_path / "regions.npz"), "--quiet"]
    command += ["--captions", str(tmp_path / "captions.jsonl"), "--tokenizer", str(folder)]
    assert main([*command, "--out", str(tmp_path / "v.npz")]) == 0
    written = np.load(tmp_path / "v.npz")
    with torch.no_grad():
        expected = torch.stack([image(torch.tensor(row[:n])) for row, n in zip(regions, counts, strict=True)])
        assert_same_vectors(written["image_embeddings"], expected)
        assert_same_vectors(written["text_embeddings"], text([[2, 4, 5, 3], [2, 9, 5, 6, 7, 8, 3]]))
    assert written["captions"].tolist() == captions
    np.savez(tmp_path / "regions.npz", image_names=["a.jpg"], regions=regions[:1, :, :7])
    assert "regions: found 7 channels; wanted 12" in refusal(*command, "--out", tmp_path / "w.npz")
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.thorough
def test_from_a_benchmark_over_its_regions_to_its_figures(tmp_path):
    """`export-inputs`, a detector's part, `embed-regions`, `score`: every variant, R@1 as torch's vectors give it."""
    image, text = perturb(Aggregator(12, 8, regions=True), 5), perturb(TextEncoder(8, **SIZES), 6)
    path = save(tmp_path / "regions.pth", image, text, precomp_enc_type="basic")
    rng, (tokenizer, images) = np.random.default_rng(1), (tmp_path / "tokenizer", tmp_path / "images")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "##s", "on", "grass", "two"]
    for folder in (tokenizer, images, tmp_path / "annotations"):
        folder.mkdir()
    (tokenizer / "vocab.txt").write_text("\n".join(words))
    items = []
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(images / f"{number}.png")
        captions = [" ".join(rng.choice(words[4:], 3 + place)) for place in range(5)]
        items.append({"image": f"{number}.png", "caption": captions + [f"{caption} two" for caption in captions]})
    (tmp_path / "annotations" / "danger.json").write_text(json.dumps(items))
    data = ["--images", str(images), "--annotations", str(tmp_path / "annotations")]
    data += ["--seeds", "1", "--mixed-galleries", "mix_0.9"]
    assert main(["export-inputs", *data, "--out", str(tmp_path / "inputs")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "inputs" / "images.jsonl").read_text().splitlines()]

    def regions_of(line):
        picture = Image.open(tmp_path / "inputs" / line["file"]).convert("RGB").resize((10, 2))
        return np.asarray(picture, np.float32).reshape(5, 12) / 64 - 2

    regions = np.stack([regions_of(line) for line in lines])
    np.savez(tmp_path / "regions.npz", image_names=[line["image"] for line in lines], regions=regions)
    command = ["embed-regions", str(path), "--regions", str(tmp_path / "regions.npz"), "--tokenizer", str(tokenizer)]
    command += ["--captions", str(tmp_path / "inputs" / "captions.jsonl"), "--out", str(tmp_path / "v.npz"), "--quiet"]
    assert main(command) == 0
    assert main(["score", "--embeddings", str(tmp_path / "v.npz"), *data, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]
    assert set(found["image_to_text"]) == {"clean", "danger"} and {"clean", "mix_0.9"} <= set(found["text_to_image"])
    clean = [caption for item in items for caption in item["caption"][:5]]
    originals = [number for number, line in enumerate(lines) if line["set"] == "originals"]
    place = {word: number for number, word in enumerate(words)}
    ids = [[2, *(place[word] for word in caption.split()), 3] for caption in clean]
    with torch.no_grad():
        vectors = torch.stack([image(torch.tensor(regions[number])) for number in originals]).numpy(), text(ids).numpy()
    scores = vectors[0] @ vectors[1].T
    names = [lines[number]["image"].rpartition("/")[2] for number in originals]
    owner = np.repeat([names.index(item["image"]) for item in items], 5)
    right = owner[scores.argmax(axis=1)] == np.arange(6)
    assert found["image_to_text"]["clean"]["r1"] == pytest.approx(100 * right.mean())
    assert found["text_to_image"]["clean"]["r1"] == pytest.approx(100 * (scores.argmax(axis=0) == owner).mean())
