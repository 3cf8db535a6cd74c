"""Identity of models that are objects or arrays: encoders of this project, objects of any framework, stored results."""

import itertools
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

import rococo_jax
from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import build_model, parameters_of
from rococo_jax.encoders import Encoder, ForeignModel, LoadOptions, load_encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.encoders.programs import Compute
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models import open_model
from rococo_jax.evaluation.models.class_logits import score_logits
from rococo_jax.evaluation.models.stored_embeddings import StoredEmbeddings, StoredSimilarities
from tests.support import reference_models
from tests.support.cases import further
from tests.support.models import encoder_of, read_towers
from tests.support.refusals import refused
from tests.support.single_changes import changes_of, copied, one_of_each_field, unchanged_copies
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.world import noise, write_world

pytestmark = pytest.mark.quick
TEXTS = ["a dog", "The RED cat", "a dog on the mat " * 6]


def all_different(keys: list) -> bool:
    return len({json.dumps(key, sort_keys=True) for key in keys}) == len(keys)


# Encoders of this project


# Two towers, and one of images; two more with `make test-full`, all in a thorough run.
@pytest.mark.parametrize(
    "family",
    ["clip", "dinov3"]
    + [pytest.param(family, marks=pytest.mark.slow) for family in ("siglip2", "bert")]
    + further(("siglip", "dinov2", "dinov2_with_registers", "tipsv2"), (), pytest.mark.thorough),
)
def test_one_value_of_any_parameter_changes_the_fingerprint_and_the_key_of_its_tower(family, tmp_path):
    sizes = {"patch_size": 16} if family == "siglip2" else {}
    encoder = read_towers(reference_models.saved(getattr(reference_models, family)(**sizes), tmp_path))
    # Without provenance, as a user makes one; the other one has it.
    bare = Encoder(encoder.model, encoder.preprocessing, encoder.tokenizer, name="bare", mesh=encoder.mesh)
    assert bare.fingerprint() == encoder.fingerprint()
    sides = [side for side in ("vision", "text") if getattr(encoder.spec, side) is not None]
    first, towers = encoder.fingerprint(), {side: encoder.describe_tower(side) for side in sides}
    parameters = parameters_of(encoder.model)
    for path, array in parameters.items():
        changed = np.array(array)
        changed.flat[-1] += 0.25
        bare.model = encoder.model = build_model(encoder.spec, {**parameters, path: changed})
        for each in (encoder, bare):
            assert each.fingerprint() != first, path
        for side in sides:
            assert (encoder.describe_tower(side) == towers[side]) == (not path.startswith(f"{side}.")), path
    encoder.model = build_model(encoder.spec, parameters)
    assert encoder.fingerprint() == first
    assert len(parameters) > 15


DECISIVE = (
    "tokenizer.json: model/vocab", "tokenizer.json: normalizer", "tokenizer.json: post_processor/sp",
    "model.json: preprocessing/mean", "model.json: preprocessing/shortest_edge", "model.json: tokenizer/",
    "model.json: spec/vision/activation",
)  # fmt: skip


@pytest.mark.slow
def test_every_change_of_a_model_directory_changes_the_keys_or_no_embedding_or_is_refused(tmp_path):
    folder = tmp_path / "model"
    save_model(folder, tiny_encoder())

    def read(place: Path) -> Encoder:
        return load_encoder(str(place), mesh=tiny_encoder().mesh)

    def keys(encoder: Encoder) -> list:
        return [encoder.fingerprint(), encoder.describe_tower("vision"), encoder.describe_tower("text")]

    def numbers(encoder: Encoder) -> list:
        return [encoder.encode_image([*noise_images()]), encoder.encode_text(TEXTS)]

    first, expected = read(folder), numbers(read(folder))
    changed, refused_changes = [], []
    changes = changes_of(folder)
    if not os.environ.get("ROCOCO_THOROUGH"):
        changes = one_of_each_field(changes, DECISIVE, depth=2)
    for label, change in changes:
        if "/" in label.split(":")[0]:  # Orbax's own files
            continue
        change(copy := copied(folder, tmp_path / "copy"))
        try:
            other = read(copy)
        except BaseException as error:
            assert isinstance(error, InputError) or "tokenizer.json" in label, label
            refused_changes.append(label)
            continue
        if keys(other) == keys(first):
            assert all(map(np.array_equal, numbers(other), expected)), label
        else:
            assert other.fingerprint() != first.fingerprint()
            changed.append(label)
    for beginning in DECISIVE:
        assert any(label.startswith(beginning) for label in changed), beginning
    assert len(changed) > (40 if os.environ.get("ROCOCO_THOROUGH") else 15), len(changed)
    for label, change in unchanged_copies(folder):
        change(copy := copied(folder, tmp_path / "another name"))
        assert keys(read(copy)) == keys(first), label


def noise_images():
    return [np.random.default_rng(seed).integers(0, 256, (40, 48, 3), np.uint8) for seed in range(2)]


def test_weights_that_are_changed_in_place_are_used_and_have_another_key():
    encoder = tiny_encoder()
    first, tower, before = encoder.fingerprint(), encoder.describe_tower("text"), encoder.encode_text(TEXTS)
    words = encoder.model.text.words
    words = getattr(words, "embedding", words)
    old = words[...]
    words[...] = old.at[:, 0].add(0.5)
    assert encoder.fingerprint() != first and encoder.describe_tower("text") != tower
    after = encoder.encode_text(TEXTS)
    assert not np.allclose(after, before)
    fresh = Encoder(build_model(encoder.spec, parameters_of(encoder.model)), encoder.preprocessing, encoder.tokenizer)
    np.testing.assert_allclose(after, fresh.encode_text(TEXTS), atol=1e-6)
    # After `use`, too.
    encoder.use(Compute(images_at_once=2))
    used = encoder.fingerprint()
    words[...] = old.at[:, 1].add(0.5)
    assert len({first, used, encoder.fingerprint()}) == 3
    words[...] = old
    assert encoder.fingerprint() == first
    np.testing.assert_array_equal(encoder.encode_text(TEXTS), before)


def test_weights_in_numpy_arrays_are_read_at_each_call():
    encoder = tiny_encoder()
    words = getattr(encoder.model.text.words, "embedding", encoder.model.text.words)
    values = np.array(words[...])
    words.set_value(values)
    before = encoder.fingerprint(), encoder.describe_tower("text"), encoder.encode_text(TEXTS)
    values[:, 0] += 0.5
    assert encoder.fingerprint() != before[0] and encoder.describe_tower("text") != before[1]
    assert not np.allclose(encoder.encode_text(TEXTS), before[2])


def test_provenance_and_name_and_devices_do_not_change_the_identity_of_an_encoder():
    encoder = tiny_encoder()
    parts = encoder.model, encoder.preprocessing, encoder.tokenizer
    others = [
        Encoder(*parts, {"weights_sha256": "0" * 64}, "other", encoder.mesh),
        Encoder(*parts, {"source": "/elsewhere"}, mesh=rococo_jax.runtime.make_mesh(jax.devices()[:2])),
    ]
    assert {each.fingerprint() for each in others} == {encoder.fingerprint()}


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    captions = [[f"a dog of kind {image} seen {place}" for place in range(5)] for image in range(4)]
    altered = {"danger": "{} and a weapon".format}
    folder = write_world(tmp_path_factory.mktemp("coco"), captions, picture=noise(6, 8, 4), altered=altered)
    return {"images": folder / "images", "annotations": folder / "annotations", "mixed_galleries": ()}


@pytest.mark.slow
def test_results_are_never_reused_for_another_encoder_of_the_same_name(coco, tmp_path):
    one, other = (encoder_of(tiny_spec(), *parts_of(tiny_encoder()), seed=seed) for seed in (3, 4))
    results = rococo_jax.evaluate(one, **coco, out=tmp_path)
    assert rococo_jax.evaluate(one, **coco, out=tmp_path) == results
    refused("fingerprint: model.weights: found results of 'mine'", rococo_jax.evaluate, other, **coco, out=tmp_path)


def parts_of(encoder: Encoder) -> tuple:
    return encoder.preprocessing, encoder.tokenizer


# Objects of any framework


class Vectors:
    name = "vectors"

    def __init__(self, place: int = 0, **attributes):
        self.place = place
        vars(self).update(attributes)

    def fingerprint(self):
        return "v1"

    def encode_image(self, images):
        return np.eye(4)[[self.place] * len(images)]

    def encode_text(self, texts):
        return np.eye(4)[[self.place] * len(texts)]

    def with_prompt(self, prompt, role):
        return type(self)(self.place + 1, name=self.name)


class Scores(Vectors):
    encode_image = encode_text = None

    def score_pairs(self, images, texts):
        return np.full(len(texts), float(self.place))


class Matrices(Vectors):
    def encode_image(self, images):
        return [np.eye(4)[: 1 + self.place] for _ in images]

    encode_text = encode_image


def subclass_of(kind: type, **members) -> type:
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__, **members})


@pytest.mark.parametrize("kind", [Vectors, Scores, Matrices])
def test_module_class_name_prompt_and_fingerprint_identify_an_object(kind):
    def keys(thing: ForeignModel) -> tuple:
        described = {key: value for key, value in thing.describe().items() if key != "name"}
        towers = [thing.describe_tower("text"), thing.describe_tower("vision")] if thing.embedder else [described]
        return described, *towers

    others = [
        kind(name="another"), kind(name=""), subclass_of(kind, __module__="elsewhere")(),
        subclass_of(kind, __qualname__="Outer.Inner")(), subclass_of(kind, fingerprint=lambda self: "v2")(),
    ]  # fmt: skip
    models = [ForeignModel(kind()), *map(ForeignModel, others)]
    if kind is not Matrices:
        models += [ForeignModel(kind()).with_prompt(prompt, "query") for prompt in ("find", "seek")]
    for column in zip(*map(keys, models), strict=True):
        assert all_different(list(column))
    same = keys(ForeignModel(kind()))
    assert keys(ForeignModel(kind(batch_size=3, device="cuda:1"))) == same
    assert keys(ForeignModel(kind(), "as tables call it", None, 5)) == same
    scaled = [ForeignModel(kind(logit_scale=scale)).describe() for scale in (1.0, 2.0)]
    assert scaled[0] != scaled[1]


def test_the_cache_keeps_objects_of_equal_fingerprints_apart(tmp_path):
    cache = EmbeddingCache(tmp_path)
    one, other = Vectors(0), subclass_of(Vectors, __qualname__="Others")(1)
    assert embed_texts(ForeignModel(one), ["x"], cache).argmax() == 0
    assert embed_texts(ForeignModel(other), ["x"], cache).argmax() == 1
    prompted = ForeignModel(one).with_prompt("find", "query")
    assert embed_texts(prompted, ["x"], cache).argmax() == 1
    assert cache.read == 0
    embed_texts(ForeignModel(Vectors(0), "another name"), ["x"], cache)
    assert cache.read == 1 and cache.unidentified == 0


def test_embeddings_of_an_object_without_a_fingerprint_are_counted_as_not_cached(tmp_path):
    class Unidentified:
        def encode_image(self, images):
            return np.eye(4)[[0] * len(images)]

        def encode_text(self, texts):
            return np.eye(4)[[0] * len(texts)]

    cache = EmbeddingCache(tmp_path)
    for times in (1, 2):
        embed_texts(ForeignModel(Unidentified()), ["x", "y", "x"], cache)
        assert (cache.computed, cache.unidentified, cache.read) == (2 * times, 2 * times, 0)
    uncached = EmbeddingCache(None)
    embed_texts(ForeignModel(Unidentified()), ["x"], uncached)
    assert (uncached.computed, uncached.unidentified) == (1, 0)


def test_a_model_from_a_file_is_identified_by_its_code_and_not_by_its_folder(tmp_path, monkeypatch):
    code = "from tests.encoders.test_identity_of_objects import Vectors\nclass M(Vectors):\n    pass\n"
    keys = []
    for folder, text in (("a", code), ("b", code), ("c", code + "    place = 1\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "models.py").write_text(text)
        os.utime(tmp_path / folder / "models.py", (1, 1))
        keys.append(open_model(f"{tmp_path}/{folder}/models.py:M").describe())
    assert keys[0] == keys[1] != keys[2]


def test_an_evaluation_has_no_fingerprint_if_one_of_its_models_has_none():
    class Unknown(Vectors):
        fingerprint = property(lambda self: (_ for _ in ()).throw(AttributeError("fingerprint")))

        def with_prompt(self, prompt, role):
            return Vectors()

    class KnownUntilPrompted(Vectors):
        def with_prompt(self, prompt, role):
            return Unknown()

    prompts = LoadOptions(query_prompt="find", document_prompt="file")
    assert open_model(Unknown()).describe()["fingerprint"] is None
    for each in (prompts, LoadOptions(document_prompt="file"), LoadOptions(query_prompt="find")):
        assert open_model(KnownUntilPrompted(), options=each).describe()["fingerprint"] is None


def test_the_identity_contains_prompts_and_candidates_and_scoring_mode(tmp_path):
    save_model(tmp_path / "one", tiny_encoder())
    copied(tmp_path / "one", tmp_path / "two")
    save_model(tmp_path / "three", tiny_encoder(seed=1))

    class Both(Vectors):
        score_pairs = Scores.score_pairs

    def described(**options):
        return open_model(Both(), options=LoadOptions(**options)).describe()

    candidates = [described(candidates=str(tmp_path / name)) for name in ("one", "two", "three")]
    assert candidates[0] == candidates[1]
    options = [{}, {"by": "pairs"}, {"query_prompt": "a"}, {"query_prompt": "b"}, {"document_prompt": "a"}]
    options += [{"query_prompt": "a", "document_prompt": "a"}, {"by": "pairs", "query_prompt": "a"}]
    assert all_different([*candidates[1:], *(described(**each) for each in options)])


# Stored results


def test_stored_embeddings_are_identified_by_keys_and_numbers(tmp_path):
    rng, count = np.random.default_rng(0), itertools.count()
    base = {
        "image_names": np.array(["a.png", "b.png"]), "image_embeddings": rng.normal(size=(2, 3)).astype(np.float32),
        "captions": np.array(["a dog", "a cat", "a mat"]),
        "text_embeddings": rng.normal(size=(3, 3)).astype(np.float32),
    }  # fmt: skip

    def key(arrays, write=np.savez) -> dict:
        write(path := tmp_path / f"{next(count)}.npz", **arrays)
        os.utime(path, (1, 1))
        return StoredEmbeddings(path).describe()

    first, others = key(base), []
    for name, array in base.items():
        for at in range(array.size):
            changed = array.astype(array.dtype if array.dtype.kind == "f" else "U9")
            changed.flat[at] = array.flat[at] + (1.0 if array.dtype.kind == "f" else "x")
            others.append(key({**base, name: changed}))
    swapped = {**base, "image_names": base["image_names"][::-1]}
    assert all_different([first, key(swapped), *others]) and len(others) == 20
    sorted_otherwise = {name: array[::-1] for name, array in base.items()}
    assert key(base, np.savez_compressed) == key(dict(reversed(base.items()))) == key(sorted_otherwise) == first
    # In two files of a folder, of any names.
    for side, names in (("x", ("image_names", "image_embeddings")), ("y", ("captions", "text_embeddings"))):
        (tmp_path / "folder").mkdir(exist_ok=True)
        np.savez(tmp_path / "folder" / f"{side}.npz", **{name: base[name] for name in names})
    assert StoredEmbeddings(tmp_path / "folder").describe() == first


def test_stored_arrays_are_identified_by_their_bytes(tmp_path):
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    changed = other.copy()
    changed[-1, -1] += 1e-9

    def saved(name: str, array: np.ndarray) -> Path:
        np.save(path := tmp_path / name, array)
        os.utime(path, (1, 1))
        return path

    assert (
        StoredSimilarities(saved("s.npy", other), is_file=True).describe()
        == StoredSimilarities(saved("t.npy", other), is_file=True).describe()
        != StoredSimilarities(saved("u.npy", changed), is_file=True).describe()
    )
    folders = []
    for name, files in (("a", {"originals": one}), ("b", {"originals": one}), ("c", {"originals": one + 1e-9}),
                        ("d", {"originals": one, "fog_3": other}), ("e", {"fog_3": one})):  # fmt: skip
        (tmp_path / name).mkdir()
        for file, array in files.items():
            saved(f"{name}/{file}.npy", array)
        folders.append(StoredSimilarities(tmp_path / name).describe())
    assert folders[0] == folders[1] and all_different(folders[1:])


@pytest.mark.slow
def test_class_logits_are_identified_by_tables_columns_labels_and_groups(tmp_path):
    rng, count = np.random.default_rng(0), itertools.count()
    base = {
        "logits": rng.normal(size=(6, 3)), "columns": ["cat", "dog", "mat"], "labels": ["cat", "dog", "mat"] * 2,
        "groups": None, "corrupted": {}, "outside": {},
    }  # fmt: skip

    def written(content: bytes | str, suffix: str) -> str:
        path = tmp_path / f"{next(count)}{suffix}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def table(logits: np.ndarray) -> str:
        np.savez(path := tmp_path / f"{next(count)}.npz", logits=logits)
        return str(path)

    def key(**changes):
        case = {**base, **changes}
        results = score_logits(
            table(case["logits"]),
            written("image,label\n" + "".join(f"{row},{label}\n" for row, label in enumerate(case["labels"])), ".csv"),
            name="mine",
            classes=written(json.dumps({each: each for each in case["columns"]}), ".json"),
            groups=case["groups"] and written(json.dumps(case["groups"]), ".json"),
            corrupted={name: table(each) for name, each in case["corrupted"].items()},
            outside={name: table(each) for name, each in case["outside"].items()},
        ).results["fingerprint"]
        return [results["model"], results["data"]]

    other = base["logits"].copy()
    other[5, 2] += 1e-9
    coarse = {"groups": {"pet": ["cat", "dog"], "thing": ["mat"]}, "labels": ["pet", "thing"] * 3}
    keys = [
        key(), key(logits=other), key(columns=["dog", "cat", "mat"]), key(labels=["dog", "cat", "mat"] * 2),
        key(**coarse),
        key(**{**coarse, "groups": {"pet": ["cat", "mat"], "thing": ["dog"]}}), key(corrupted={"fog_3": other}),
        key(corrupted={"fog_5": other}), key(outside={"far": other}), key(outside={"near": other}),
        key(corrupted={"fog_3": other}, outside={"far": other}),
    ]  # fmt: skip
    assert all_different(keys)
    assert key() == keys[0]
