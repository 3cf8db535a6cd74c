"""A run resumes only with the contents that it began with: data, files of losses, weights, whatever their names."""

import json
import os
import shutil
from pathlib import Path

import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.data import content_hashes
from rococo_jax.errors import InputError
from rococo_jax.training import run
from tests.support.tiny import tiny_encoder
from tests.support.tiny_runs import CAPTIONS, FEATURES_ALONE, Stopped, stop_after, tiny_config
from tests.support.world import write_world

# More than a sample of 64 would read.
IMAGES = 70
pytestmark = pytest.mark.usefixtures("one_device")


def lexicon_of(*animals: str) -> str:
    groups = [{"concept": "animal", "nouns": list(animals)}, {"concept": "place", "nouns": ["house", "boat"]}]
    return json.dumps({"format": "rococo_jax.lexicon", "version": 1, "groups": groups})


def influence_of(value: float) -> str:
    rows = [{"caption": text, "words": text.split(), "influence": [value] * len(text.split())} for text in CAPTIONS]
    return "".join(json.dumps(row) + "\n" for row in rows)


def partners_of(word: str) -> str:
    return "".join(json.dumps({"caption": text, "hard_negative": f"{text} {word}"}) + "\n" for text in CAPTIONS)


@pytest.fixture
def data(tmp_path) -> Path:
    folder = write_world(tmp_path / "data", [CAPTIONS[:2]] * IMAGES, start=tiny_encoder(name="start"))
    (folder / "lexicon.json").write_text(lexicon_of("dog", "cat"))
    (folder / "influence.jsonl").write_text(influence_of(0.1))
    (folder / "partners.jsonl").write_text(partners_of("red"))
    return folder


def config_of(data: Path, **settings):
    files = {"sc__lexicon": "lexicon", "sc__influence": "influence", "hard_positives__negatives": "partners"}
    suffixes = {"lexicon": "json", "influence": "jsonl", "partners": "jsonl"}
    paths = {f"losses__{key}": str(data / f"{name}.{suffixes[name]}") for key, name in files.items()}
    weights = {"losses__sc__weight": 1.0, "losses__hard_positives__weight": 1.0, "losses__sc__variants": "same_concept"}
    common = {"steps": 3, "batch_size": 8, "checkpoint__every": 1, "data__feature_pool__captions": 1}
    return tiny_config(data, **(common | paths | weights | FEATURES_ALONE | settings))


def rewrite(path: Path, content: bytes) -> None:
    """Other bytes under the same name, of the same size and time."""
    before = path.stat()
    assert len(content) == before.st_size and content != path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_images(data: Path) -> None:
    """The second image shows the third and the other way round; neither is among 64 of 70 that a sample reads."""
    paths = [data / "images" / f"{number:02}.png" for number in range(IMAGES)]
    sampled = {number * IMAGES // 64 for number in range(64)}
    unread = [path for number, path in enumerate(paths) if number not in sampled]
    content = bytearray(unread[0].read_bytes())
    content[-20] ^= 1  # in the checksum of the last chunk, which no decoder minds
    rewrite(unread[0], bytes(content))


def replace_start(data: Path) -> None:
    shutil.rmtree(data / "start")
    save_model(data / "start", tiny_encoder(seed=1, name="start"))


def swapped(path: Path, first: str, second: str) -> bytes:
    """The file with two texts in each other's place."""
    return path.read_text().replace(first, "_").replace(second, first).replace("_", second).encode()


CHANGES = {
    "images": swap_images,
    "lexicon": lambda data: rewrite(data / "lexicon.json", lexicon_of("dog", "owl").encode()),
    "influence": lambda data: rewrite(data / "influence.jsonl", influence_of(0.2).encode()),
    "hard positives": lambda data: rewrite(data / "partners.jsonl", partners_of("big").encode()),
    "init": replace_start,
    "data": lambda data: rewrite(data / "captions.json", swapped(data / "captions.json", CAPTIONS[0], CAPTIONS[1])),
}


def test_a_run_does_not_resume_if_files_of_the_same_names_have_other_contents(data, tmp_path):
    with pytest.raises(Stopped):
        run.run_training(config_of(data), tmp_path / "run", on_step=stop_after(3))
    intact = shutil.copytree(data, tmp_path / "intact")
    for field, change in CHANGES.items():
        change(data)
        with pytest.raises(InputError) as error:
            run.run_training(config_of(data), tmp_path / "run")
        assert error.value.field == field and "\n" not in str(error.value)
        assert not (tmp_path / "run" / "model").exists()
        shutil.rmtree(data)
        shutil.copytree(intact, data)


def test_data_may_change_until_the_first_checkpoint_exists(data, tmp_path):
    config = config_of(data, checkpoint__every=100)
    with pytest.raises(Stopped):
        run.run_training(config, tmp_path / "run", on_step=stop_after(1))
    before = (tmp_path / "run" / "origin" / "training_images.txt").read_text()
    swap_images(data)
    run.run_training(config, tmp_path / "run")
    assert (tmp_path / "run" / "model" / "training_images.txt").read_text() != before


@pytest.fixture
def hashed_images(tmp_path, monkeypatch) -> list[str]:
    """The names of the image files that are read to hash them, in a cache of this test."""
    names, hash_file = [], content_hashes.hash_file

    def note_and_hash(path):
        names.extend([Path(path).name] if Path(path).suffix == ".png" else [])
        return hash_file(path)

    monkeypatch.setattr(content_hashes, "hash_file", note_and_hash)
    monkeypatch.setattr(content_hashes, "_BYTES_WORTH_SAVING", 0)
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    return names


def test_a_new_run_hashes_each_image_only_once(data, tmp_path, hashed_images):
    run.run_training(config_of(data), tmp_path / "run")
    assert sorted(hashed_images) == [f"{number:02}.png" for number in range(IMAGES)]


@pytest.mark.slow
@pytest.mark.thorough
def test_copied_files_count_as_the_same_data(data, tmp_path, hashed_images):
    """A resumed run reads images again if their files were written again, and otherwise does not."""
    for step in (2, 3):
        with pytest.raises(Stopped):
            run.run_training(config_of(data), tmp_path / "run", on_step=stop_after(step))
    assert len(hashed_images) == IMAGES
    for path in (data / "images").iterdir():
        path.write_bytes(path.read_bytes())
    run.run_training(config_of(data), tmp_path / "run")
    assert len(hashed_images) == 2 * IMAGES


@pytest.mark.slow
def test_an_influence_table_of_another_model_is_refused(data, tmp_path):
    """Compute the table in the working folder before the first checkpoint."""
    config = config_of(data, losses__sc__influence="", losses__hard_positives__weight=0.0, checkpoint__every=100)
    with pytest.raises(Stopped):
        run.run_training(config, tmp_path / "run", on_step=stop_after(1))
    replace_start(data)
    with pytest.raises(InputError, match=r"influence\.jsonl: weights: found .*; wanted .*remove the table"):
        run.run_training(config, tmp_path / "run")
    (tmp_path / "run" / "influence.jsonl").unlink()
    assert run.run_training(config, tmp_path / "run").model is not None
