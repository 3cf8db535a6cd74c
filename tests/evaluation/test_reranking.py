"""BLIP's matching head beside `transformers`, and `rococo evaluate --rerank` beside its scores sorted by NumPy."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT
from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import parameter_shapes, parameters_of, without_matching
from rococo_jax.cli.inspect import describe_facts
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images
from rococo_jax.encoders.inspection import inspect_model
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.runner import evaluate_model
from rococo_jax.models import DualEncoder, MatchingSpec, ModelSpec
from rococo_jax.models.flops import matching_flops
from rococo_jax.runtime import make_mesh
from tests.support.random_inputs import random_pixels
from tests.support.reference_models import TEXT, VISION, perturbed, saved, torch, torch_ids, torch_pixels, transformers
from tests.support.refusals import refused
from tests.support.tiny import WORDS, tiny_encoder, tiny_spec, tiny_tokenizer
from tests.support.world import noise, write_world

ENC = 299
IMAGES = 6
ALTERED = Settings(mixed_galleries=("patch_0.9",), seeds=(10,), corruptions=("contrast",), severities=(3,))
# Float32 sums in another order, over three layers; logits differ by tenths and more.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def reference():
    """A random BLIP whose vocabulary ends with [DEC] and [ENC], and which tells pairs apart clearly."""
    text = {**TEXT, "vocab_size": ENC + 1, "bos_token_id": ENC - 1, "max_position_embeddings": 24}
    text |= {"encoder_hidden_size": VISION["hidden_size"], "pad_token_id": 0, "sep_token_id": 2}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=11)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        blip = perturbed(transformers.BlipForImageTextRetrieval(config))
    # Fresh matrices are so small that all pairs would be judged nearly alike.
    for name, parameter in blip.named_parameters():
        if parameter.ndim > 1 and ("attention" in name or "itm_head" in name) and "vision" not in name:
            parameter.data *= 6
    return blip


@pytest.fixture(scope="module")
def model(reference, tmp_path_factory):
    """The same as a model directory, with a tokenizer."""
    folder = tmp_path_factory.mktemp("blip")
    encoder = load_model(saved(reference, folder / "theirs"), mesh=make_mesh(jax.devices()[:1]))
    encoder.tokenizer = tiny_tokenizer()
    save_model(folder / "blip", encoder)
    return folder / "blip"


@pytest.fixture(scope="module")
def encoder(model):
    return load_model(model, mesh=make_mesh(jax.devices()[:1]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six images with five captions each, and one variant."""
    rng = np.random.default_rng(0)
    # Of few lengths, since each is a program to compile.
    lengths = (rng.choice([3, 4, 5, 16], 5) for _ in range(IMAGES))
    captions = [[" ".join(rng.choice(WORDS, words)) for words in each] for each in lengths]
    altered = {"danger": "{} q".format}
    return write_world(tmp_path_factory.mktemp("data"), captions, picture=noise(6, 8, 6), altered=altered)


@pytest.fixture(scope="module")
def opened(data):
    """The benchmark with what the settings ask for."""
    return lambda settings: open_benchmarks(settings, images=data / "images", annotations=data / "annotations")


def reference_logits(reference, pixels, ids, mask) -> np.ndarray:
    """(images, texts, 2), every pair by the reference's own call."""
    logits = []
    with torch.no_grad():
        for image in torch_pixels(np.asarray(pixels)):
            images = image[None].expand(len(ids), -1, -1, -1)
            logits.append(reference(torch_ids(ids), images, True, torch.from_numpy(mask).long()).itm_score.numpy())
    return np.stack(logits)


@pytest.fixture(scope="module")
def judged(encoder):
    """Pixels; texts of several lengths, more than a group of an image has; all pairs in some order; their logits."""
    pixels, texts = random_pixels(30, count=3), [[1, *range(4, 4 + length), 2] for length in (1, 5, 20, 14, 7)] * 5
    pairs = np.divmod(np.random.default_rng(0).permutation(len(pixels) * len(texts)), len(texts))
    tokens = encoder.image_tokens(pixels)
    return pixels, texts, pairs, tokens, encoder.matching_logits(tokens, texts, pairs)


def test_matching_logits_of_pairs_match_the_reference(reference, encoder, judged):
    pixels, texts, pairs, _, logits = judged
    # The encoder puts [ENC] in front, as the head was trained.
    ids, mask = encoder.tokenizer.pad([[ENC, *text[1:]] for text in texts])
    expected = reference_logits(reference, pixels, ids, mask)
    np.testing.assert_allclose(logits, expected[pairs], rtol=0, atol=TOLERANCE)
    # Neither the text nor the image is without effect.
    assert min(np.ptp(expected, axis=1).min(), np.ptp(expected, axis=0).max()) > 1000 * TOLERANCE


def test_logits_of_a_pair_do_not_depend_on_other_pairs_of_the_batch(encoder, judged):
    _, texts, pairs, tokens, logits = judged
    some = pairs[0][::3], pairs[1][::3]
    np.testing.assert_array_equal(encoder.matching_logits(tokens, texts, some), logits[::3])
    short = np.array([len(texts[text]) < 17 for text in pairs[1]])  # one length, hence one program
    many = Encoder(encoder.model, encoder.preprocessing, encoder.tokenizer, mesh=make_mesh(jax.devices()[:2]))
    of_short = pairs[0][short], pairs[1][short]
    np.testing.assert_array_equal(many.matching_logits(tokens, texts, of_short), logits[short])


def scores_of_reference(reference, encoder, benchmark) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and matching logits of all images with all captions, (images, captions) each."""
    prepared = [encoder.preprocessing.resize(Image.open(path)) for path in benchmark.image_sets["originals"].paths]
    pixels = np.asarray(encoder.preprocessing.normalise(jnp.asarray(np.stack(prepared))))
    ids, mask = encoder.tokenizer.pad(encoder.tokenizer.encode(list(benchmark.texts)))
    with torch.no_grad():
        cosines = reference(torch_ids(ids), torch_pixels(pixels), False, torch.from_numpy(mask).long()).itm_score
    ids[:, 0] = ENC
    return cosines.numpy(), reference_logits(reference, pixels, ids, mask)[..., 1]


def expected_rows(task, cosines: np.ndarray, logits: np.ndarray, count: int):
    """Rank of the best own original and what stands on top, for each query, by sorting twice."""
    gallery = task.gallery.index
    for place, query in enumerate(task.queries.index):
        of = (query, gallery) if task.name == IMAGE_TO_TEXT else (gallery, query)
        by_cosine = np.argsort(-cosines[of], kind="stable")
        judged = by_cosine[:count]
        best = judged[np.argsort(-(logits[of] + cosines[of])[judged], kind="stable")]
        order = np.concatenate([best, by_cosine[count:]])
        own = task.gallery_group[order] == task.query_group[place]
        altered = task.gallery_altered[order]
        first = int(np.flatnonzero(own & ~altered)[0])
        kind = ("own_altered" if altered[0] else "own") if own[0] else ("other_altered" if altered[0] else "other")
        # Own originals are no rivals of each other, and none stands before the first.
        yield 1 + first, kind


def assert_ranks(rows: list[dict], count: int, reference, encoder, benchmarks) -> None:
    (benchmark,) = benchmarks
    cosines, logits = scores_of_reference(reference, encoder, benchmark)
    wanted = [row for task in benchmark.tasks for row in expected_rows(task, cosines, logits, count)]
    assert [(row["rank"], row["top1_kind"]) for row in rows] == wanted
    assert len({rank for rank, _ in wanted}) > 5


@pytest.mark.parametrize("count", [60, pytest.param(4, marks=pytest.mark.thorough)])
def test_ranks_match_scores_of_the_reference_sorted_by_numpy(reference, encoder, opened, count):
    """Rank candidates without a matching score after the best ones, in the order of their cosines."""
    settings = Settings(mixed_galleries=(), rerank=count)
    results, table, *_ = evaluate_model(EncoderModel(encoder), opened(settings), settings, EmbeddingCache(None))
    rows = table.to_pylist()
    assert_ranks(rows, count, reference, encoder, opened(settings))
    assert any("reranked" in note for note in results["notes"])
    assert results["fingerprint"]["data"]["rococo"]["rerank"] == count
    low = [row["positive_score"] for row in rows if row["rank"] > count]
    assert (low or count == 60) and all(-101 < score < -99 for score in low)


@pytest.mark.thorough
def test_reranking_one_candidate_does_not_change_the_first_place(encoder, opened, tmp_path, monkeypatch):
    cache = EmbeddingCache(tmp_path)
    asked = dataclasses.replace(ALTERED, rerank=1)
    before = evaluate_model(EncoderModel(encoder), opened(ALTERED), ALTERED, cache).results
    after, rows, *_ = evaluate_model(EncoderModel(encoder), opened(asked), asked, cache)
    on_top = [name for name in before["tasks"]["image_to_text"]["clean"] if name in ("r1", "fr1") or "top1" in name]
    for task, variants in before["tasks"].items():
        for variant, metrics in variants.items():
            assert {name: after["tasks"][task][variant][name] for name in on_top} == {n: metrics[n] for n in on_top}
    assert "rerank" not in before["fingerprint"]["data"]["rococo"]
    # Logits are kept: nothing is judged twice.
    monkeypatch.setattr(Encoder, "image_tokens", None)
    assert evaluate_model(EncoderModel(encoder), opened(asked), asked, cache).per_query.equals(rows)


def test_altered_images_are_reranked_with_the_pixels_that_were_embedded(encoder, opened):
    (benchmark,) = opened(ALTERED)
    assert len(benchmark.image_sets) == 5
    for images in benchmark.image_sets.values():
        vectors = embed_images(encoder, images, EmbeddingCache(None))
        wanted = np.random.default_rng(0).random(IMAGES) < 0.7
        runs = [[row for row in run if wanted[row]] for run in images.runs(4)]
        assert sorted(row for run in runs for row in run) == np.flatnonzero(wanted).tolist()
        for run in filter(None, runs):
            np.testing.assert_array_equal(encoder.encode_image(images.read(run, encoder.prepare)), vectors[run])


def test_inspect_reports_the_matching_head(encoder):
    facts = inspect_model(encoder)
    assert facts["spec"]["matching"] == {"first_id": ENC} and facts["parameters"]["matching"] > 0
    assert any("scores pairs" in line for line in describe_facts(encoder, facts))


def test_a_model_without_a_matching_head_cannot_rerank_and_its_format_is_unchanged(data, tmp_path, refusal):
    tiny = tiny_encoder()
    assert "matching" not in tiny.spec.to_json() and not any("matching" in path for path in parameter_shapes(tiny.spec))
    save_model(tmp_path / "tiny", tiny)
    command = f"evaluate {tmp_path}/tiny --images {data}/images --annotations {data}/annotations --out {tmp_path}/out"
    for count, said in (("4", "score_pairs: found none"), ("-1", "a whole number"), ("all", "a whole number")):
        assert said in refusal(*command.split(), "--rerank", count)
    assert not (tmp_path / "out").exists()
    refused("rerank", Settings, rerank=-1)


def test_a_matching_spec_requires_towers_with_suitable_tokens(encoder):
    spec = encoder.spec
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    refused("a ViT and a BERT", dataclasses.replace, tiny_spec(), matching=MatchingSpec())
    refused("an id below 300", dataclasses.replace, spec, matching=MatchingSpec(300))


def test_removing_the_matching_head_keeps_all_other_parameters(encoder):
    alone = without_matching(encoder.model)
    before, after = parameters_of(encoder.model), parameters_of(alone)
    assert alone.spec == dataclasses.replace(encoder.spec, matching=None)
    assert before.keys() - after.keys() == {path for path in before if path.startswith("matching.")} != set()
    assert all(array is before[path] or bool((array == before[path]).all()) for path, array in after.items())


def test_flops_of_the_matching_head_match_the_count_of_xla(monkeypatch):
    # XLA counts the body of a loop once, however often it runs.
    monkeypatch.setattr(jax.lax, "scan", functools.partial(jax.lax.scan, unroll=True))
    spec = dataclasses.replace(tiny_spec(256, "masked"), matching=MatchingSpec())
    graph, state = nnx.split(nnx.eval_shape(lambda: DualEncoder(spec, rngs=nnx.Rngs(0))))
    tokens = jax.ShapeDtypeStruct((1, 17, 256), jnp.float32)
    ids, mask = (jax.ShapeDtypeStruct((1, 5, 24), dtype) for dtype in (jnp.int32, jnp.bool_))
    lowered = jax.jit(lambda state, *x: nnx.merge(graph, state).matching_logits(*x)).lower(state, tokens, ids, mask)
    # Norms, activations and softmax are left out: a few per cent at this width.
    assert matching_flops(spec, 24, 5) == pytest.approx(lowered.cost_analysis()["flops"], rel=0.05)
