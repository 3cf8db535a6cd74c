"""Cache keys and fingerprints: every field of what decides a result changes them, and nothing else does."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from rococo_jax import version
from rococo_jax.benchmarks import image_sets
from rococo_jax.benchmarks.benchmark import Benchmark, with_corrupted_images
from rococo_jax.benchmarks.image_sets import CorruptedImages
from rococo_jax.benchmarks.rococo.mixed_galleries import MixedImages
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.checkpoints.parameters import build_model, hash_parameters, parameters_of
from rococo_jax.data.images import FileImages
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders import Encoder
from rococo_jax.encoders import embedding as embedding_module
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import EmbeddingPass
from rococo_jax.evaluation.results import make_fingerprint
from rococo_jax.storage import hash_json
from tests.support.tiny import tiny_encoder
from tests.support.world import noise, write_pictures


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder()


def changed(encoder: Encoder, **parts) -> Encoder:
    """The encoder with other parts, as if loaded from another directory."""
    names = ("model", "preprocessing", "tokenizer", "provenance", "name", "mesh")
    return Encoder(**{name: parts.get(name, getattr(encoder, name)) for name in names})


def with_spec(encoder: Encoder, side: str, **fields) -> Encoder:
    """Another spec of one tower, with the same parameters."""
    spec = dataclasses.replace(encoder.spec, **{side: dataclasses.replace(getattr(encoder.spec, side), **fields)})
    return changed(encoder, model=build_model(spec, parameters_of(encoder.model)))


def with_parameters(encoder: Encoder, prefix: str) -> Encoder:
    parameters = parameters_of(encoder.model)
    moved = {path: array + 0.5 if path.startswith(prefix) else array for path, array in parameters.items()}
    provenance = {"weights_sha256": hash_parameters(moved)}
    return changed(encoder, model=build_model(encoder.spec, moved), provenance=provenance)


def assert_decides(other: Encoder, encoder: Encoder, side: str) -> None:
    """The two differ in one of the towers alone."""
    different = {tower for tower in ("vision", "text") if other.describe_tower(tower) != encoder.describe_tower(tower)}
    assert different == {side}
    assert other.fingerprint() != encoder.fingerprint()


PATCHES = {"shortest_edge": None, "crop_size": None, "exact_size": (32, 32), "patch_size": 8, "max_patches": 16}
OTHER_PREPROCESSING = {
    "shortest_edge": {"shortest_edge": 40}, "crop_size": {"crop_size": (32, 24)}, "resample": {"resample": "nearest"},
    "exact_size": {"exact_size": (32, 32), "shortest_edge": None}, "rescale_factor": {"rescale_factor": 1 / 127.5},
    "library": {"library": "open_clip"}, "patch_size": PATCHES, "max_patches": {**PATCHES, "max_patches": 17},
    "mean": {"mean": (0.5, 0.4, 0.5)}, "std": {"std": (0.25, 0.25, 0.3)},
}  # fmt: skip
OTHER_TOKENIZER = {
    "family": "bert", "cleaning": "str_lower", "context_length": 23, "pad_id": 3, "eos_id": 1, "fixed_length": 24,
}  # fmt: skip


def test_every_field_of_the_preprocessing_changes_only_the_keys_of_images(encoder):
    assert OTHER_PREPROCESSING.keys() == {field.name for field in dataclasses.fields(Preprocessing)}
    others = {name: dataclasses.replace(encoder.preprocessing, **each) for name, each in OTHER_PREPROCESSING.items()}
    for preprocessing in others.values():
        assert_decides(changed(encoder, preprocessing=preprocessing), encoder, "vision")
    assert (
        len({each.pixel_view.key for each in others.values()}) == len(others) - 2
    )  # the device rescales and normalises


def test_every_field_of_the_tokenizer_changes_only_the_keys_of_texts(encoder):
    tokenizer = encoder.tokenizer
    assert OTHER_TOKENIZER.keys() == {field.name for field in dataclasses.fields(tokenizer.spec)}
    for field, value in OTHER_TOKENIZER.items():
        spec = dataclasses.replace(tokenizer.spec, **{field: value})
        assert_decides(changed(encoder, tokenizer=Tokenizer(tokenizer.rust, spec)), encoder, "text")


@pytest.mark.parametrize(("side", "field", "value"), [
    ("vision", "heads", 2), ("vision", "activation", "gelu"), ("vision", "norm_eps", 1e-6),
    ("vision", "position_rule", "linear"),
    ("text", "heads", 2), ("text", "activation", "gelu"), ("text", "norm_eps", 1e-6), ("text", "eos_id", 3),
    ("text", "pooling", "highest_id"),
])  # fmt: skip
def test_fields_of_a_spec_without_parameters_change_the_keys_of_their_tower(side, field, value, encoder):
    assert_decides(with_spec(encoder, side, **{field: value}), encoder, side)


def test_weights_and_dtype_change_the_keys_of_features_and_heads_do_not(encoder):
    low = changed(encoder, model=build_model(encoder.spec, parameters_of(encoder.model), jax.numpy.bfloat16))
    for side in ("vision", "text"):
        assert_decides(with_parameters(encoder, f"{side}."), encoder, side)
        head = with_parameters(encoder, f"{side}_head.")
        assert head.describe_tower(side) == encoder.describe_tower(side)
        assert low.describe_tower(side) != encoder.describe_tower(side)
    assert low.fingerprint() != encoder.fingerprint()
    assert changed(encoder, name="other").fingerprint() == encoder.fingerprint()
    # A hash that was written down is no part of the contents.
    assert changed(encoder, provenance={"weights_sha256": "other"}).fingerprint() == encoder.fingerprint()


def test_the_key_of_a_cached_part_depends_on_tower_versions_and_every_item(encoder, tmp_path, monkeypatch):
    cache, made = EmbeddingCache(tmp_path), []

    def computes(contents=(b"a", b"bc"), kind="captions", model=encoder) -> bool:
        before = len(made)

        def encode(items):
            made.append(items)
            yield np.arange(len(items)), np.zeros((len(items), 2), np.float32)

        EmbeddingPass(model, kind, [list(contents)], [list(contents)], encode, cache).features()
        return len(made) > before

    assert computes() and not computes()
    # Items that some part has are read from it, in any order and number.
    assert not computes((b"bc", b"a")) and not computes((b"a",))
    assert computes((b"ab", b"c")) and computes((b"a", b"bd"))
    assert computes(kind="images") and not computes(kind="images (fog_3)")
    assert computes(model=with_spec(encoder, "text", eos_id=3))
    for name in embedding_module.encoding_versions():
        versions = {**embedding_module.encoding_versions(), name: "other"}
        with monkeypatch.context() as patch:
            patch.setattr(embedding_module, "encoding_versions", lambda device, versions=versions: versions)
            assert computes() and not computes()


def test_a_change_of_any_code_that_an_embedding_depends_on_changes_its_key(tmp_path, monkeypatch):
    package = tmp_path / "rococo_jax"
    shutil.copytree(Path(version.__file__).parent, package, ignore=shutil.ignore_patterns("shipped", "__pycache__"))
    monkeypatch.setattr(version, "__file__", str(package / "version.py"))
    hashes = [version.code_hash.__wrapped__()]
    assert hashes[0] == embedding_module.encoding_versions()["code"]
    names = ["models/dual_encoder.py", "encoders/programs.py", "data/naflex.py", "benchmarks/image_sets.py"]
    names += ["perturb/images/corruptions/blur.py", "runtime.py", "texts/__init__.py", "checkpoints/zoo.toml"]
    for name in names:
        with (package / name).open("a") as file:
            file.write("# another value\n")
        hashes.append(version.code_hash.__wrapped__())
    (package / "models" / "new.py").touch()
    hashes.append(version.code_hash.__wrapped__())
    (package / "models" / "new.py").rename(package / "models" / "other.py")
    hashes.append(version.code_hash.__wrapped__())
    assert len(set(hashes)) == len(hashes)
    with (package / "report" / "page.py").open("a") as file:
        file.write("# another page\n")
    assert version.code_hash.__wrapped__() == hashes[-1]
    assert version.code_hash.__wrapped__(frozenset()) != hashes[-1]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> FileImages:
    folder = tmp_path_factory.mktemp("files")
    names = ("0.png", "1.png", "2.png", "same.png")
    write_pictures(folder, names, noise(8, 8))
    (folder / "same.png").write_bytes((folder / "0.png").read_bytes())
    return FileImages(names, tuple(folder / name for name in names))


def test_every_field_of_a_corrupted_image_changes_its_key(files):
    base = CorruptedImages(files, "fog", 3, 0)
    others = ("fog", 3, 0), ("snow", 3, 0), ("fog", 2, 0), ("fog", 3, 1), (None, 0, 0)
    # Another file, and the same file under a name of its own, which decides what is random.
    keys = [CorruptedImages(files, *other).content(0) for other in others] + [base.content(1), base.content(3)]
    assert len(set(keys)) == len(keys) and keys[0] == base.content(0)
    assert files.content(0) == files.content(3) != files.content(1)


def test_another_definition_of_corruptions_changes_keys(files, monkeypatch):
    def key():
        benchmark = Benchmark("b", images=files.names, texts=("a",), tasks=(), image_sets={ORIGINALS: files})
        return with_corrupted_images(benchmark, ["fog"], [3]).image_sets["fog_3"].content(0)

    before = key()
    monkeypatch.setattr(image_sets, "DEFINITION_VERSION", 0)
    assert key() != before


def test_every_field_of_a_mixed_image_changes_its_key(files):
    plan = make_plan(files.names, "patch", 0.9, 1, "paper")
    row, place = int(plan.first[0]), 0
    boxes = plan.boxes.copy()
    boxes[plan.batch[place]] += 1
    partners = plan.partner.copy()
    partners[place] = next(n for n in range(3) if n not in (row % 3, plan.partner[place] % 3))
    others = {}, {"method": "mix"}, {"ratio": 0.8}, {"boxes": boxes}, {"partner": partners}, {"protocol": "strict"}
    keys = [MixedImages(files, dataclasses.replace(plan, **change)).content(row) for change in others]
    assert len(set(keys)) == len(keys)
    hashes = [files.hashes[row], files.hashes[plan.partner[place]]]
    assert json.loads(keys[0])[:2] == hashes


def test_results_are_comparable_if_everything_but_the_model_is_equal(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # a flag that changes numbers is a condition
    base = {"model": {"weights": "a"}, "data": {"images": "b"}, "protocol": "paper"}
    comparable = make_fingerprint(**base)["comparable"]
    assert make_fingerprint(**{**base, "model": {"weights": "z"}})["comparable"] == comparable
    for change in ({"data": {"images": "z"}}, {"protocol": "strict"}):
        assert make_fingerprint(**{**base, **change})["comparable"] != comparable
    assert comparable == hash_json({"data": base["data"], "protocol": "paper"})
    assert make_fingerprint(**base, versions={"jax": "0.0.1"})["comparable"] == comparable
    assert make_fingerprint(**base)["versions"].keys() == {"rococo_jax", "jax", "numpy", "device", "processor"}
