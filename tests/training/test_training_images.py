"""Every model of a run keeps the list of images that its weights were trained on, whatever road it takes."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rococo_jax.checkpoints import export_huggingface, export_open_clip, save_model
from rococo_jax.cli.main import main
from rococo_jax.data.training_images import TrainingImages, read_training_images, union
from rococo_jax.encoders import load_model
from rococo_jax.training import run
from rococo_jax.training.init import interpolated, starting_encoder
from tests.support.cases import further
from tests.support.tiny import exportable_encoder, random_captions, tiny_encoder
from tests.support.tiny_runs import FEATURES_ALONE, tiny_config
from tests.support.world import write_world

IMAGES, TRAINED = 20, 12
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images, captions of the first twelve and of the other eight, and a model that was trained on none."""
    captions = [random_captions(3, seed=number, longest=6) for number in range(IMAGES)]
    start = tiny_encoder(name="start")
    start.training_images = TrainingImages(frozenset())
    folder = write_world(tmp_path_factory.mktemp("data"), captions, start=start)
    items = json.loads((folder / "captions.json").read_text())
    (folder / "first.json").write_text(json.dumps(items[:TRAINED]))
    (folder / "others.json").write_text(json.dumps(items[TRAINED:]))
    return folder


def config_of(data: Path, captions: str = "first.json", **settings):
    """A run on features of frozen towers, two steps long."""
    paths = {"data__captions": str(data / captions), "steps": 2, "batch_size": 8, "checkpoint__every": 1}
    return tiny_config(data, **(FEATURES_ALONE | paths | settings))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory, one_device) -> Path:
    """A finished run on twelve images, evaluated, so that it has a best checkpoint."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    config = config_of(data)
    config.eval.every, config.eval.data = 1, "read by nobody"
    run.run_training(config, workdir, evaluate=lambda encoder: {"score": 1.0})
    return workdir


def keys_of(data: Path, numbers: range) -> set[str]:
    """The start of the SHA-256 of each file, independently of the package."""
    files = [data / "images" / f"{number:02}.png" for number in numbers]
    return {hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def images_of(source) -> TrainingImages:
    return load_model(source).training_images


@pytest.mark.parametrize("source", ["{}/model", "{}@latest", "{}@best", "{}@1", "{}/checkpoints/2"])
def test_a_trained_model_lists_its_training_images(data, trained, source):
    images = images_of(source.format(trained))
    assert images.keys == keys_of(data, range(TRAINED)) and images.complete


def test_a_copied_model_keeps_its_training_images(data, trained, tmp_path):
    save_model(tmp_path / "copy", load_model(f"{trained}@latest"))
    assert images_of(tmp_path / "copy") == images_of(trained / "model")
    assert main(["convert", f"{trained}@best", str(tmp_path / "converted")]) == 0
    assert images_of(tmp_path / "converted") == images_of(trained / "model")


def test_an_interpolated_model_lists_the_images_of_both(data, trained, tmp_path):
    first, start = load_model(trained / "model"), load_model(data / "start")
    assert interpolated(first, first, 0.5).training_images == first.training_images
    words = ["interpolate", str(data / "start"), f"{trained}@latest", "--weight", "0.5", "--out", str(tmp_path / "out")]
    assert main(words) == 0 and images_of(tmp_path / "out" / "weight_0.5") == first.training_images
    start.training_images = None
    assert interpolated(start, first, 0.5).training_images == TrainingImages(first.training_images.keys, complete=False)


@pytest.mark.parametrize(
    "source", further(["{}/model", "{}@latest", "{}/checkpoints/1"], ["{}@latest"], pytest.mark.thorough)
)
def test_a_run_adds_its_images_to_those_of_its_starting_model(data, trained, tmp_path, source):
    done = run.run_training(config_of(data, "others.json", init__model=source.format(trained)), tmp_path / "second")
    for model in (done.model, f"{tmp_path / 'second'}@latest"):
        images = images_of(model)
        assert images.keys == keys_of(data, range(IMAGES)) and images.complete


def test_an_evaluation_during_training_knows_the_training_images(data, tmp_path):
    config, lists = config_of(data), []
    config.eval.every, config.eval.data = 1, "read by nobody"
    run.run_training(config, tmp_path / "run", evaluate=lambda encoder: lists.append(encoder.training_images) or {})
    assert [images.keys for images in lists] == [keys_of(data, range(TRAINED))] * 2


def test_training_images_of_a_model_from_elsewhere_are_unknown(data, tmp_path):
    """The list has at least the images of the run; a model with random parameters has seen none before."""
    save_model(tmp_path / "unknown", tiny_encoder(name="unknown"))
    done = run.run_training(config_of(data, init__model=str(tmp_path / "unknown")), tmp_path / "run")
    assert images_of(done.model) == TrainingImages(frozenset(keys_of(data, range(TRAINED))), complete=False)
    spec = {"init__spec": tiny_encoder().spec.to_json(), "init__tokenizer": str(tmp_path / "unknown")}
    preprocessing = tiny_encoder().preprocessing.to_json()
    random = starting_encoder(config_of(data, init__model="", init__preprocessing=preprocessing, **spec))
    assert random.training_images == TrainingImages(frozenset())


def test_a_union_of_lists_is_complete_only_if_all_lists_are_complete():
    first, second = TrainingImages(frozenset("a")), TrainingImages(frozenset("b"))
    assert union(first, second) == first | second == TrainingImages(frozenset("ab"))
    assert union(first, None) == first | None == union(None, first) == TrainingImages(frozenset("a"), complete=False)
    assert union(None, None) is None and not union(union(first, None), second).complete


def test_an_incomplete_list_is_still_incomplete_after_saving_and_loading(tmp_path):
    encoder = tiny_encoder()
    encoder.training_images = TrainingImages(frozenset({"0" * 16}), complete=False)
    save_model(tmp_path / "model", encoder)
    assert read_training_images(tmp_path / "model") == encoder.training_images


@pytest.mark.parametrize("export", [export_huggingface, export_open_clip])
def test_a_model_that_is_exported_and_converted_back_keeps_its_training_images(export, tmp_path):
    encoder = exportable_encoder()
    encoder.training_images = TrainingImages(frozenset({"0" * 16}))
    export(encoder, tmp_path / "export")
    save_model(tmp_path / "back", load_model(tmp_path / "export"))
    assert images_of(tmp_path / "back") == encoder.training_images


def test_a_killed_run_never_leaves_a_model_without_its_list_of_images(data, tmp_path, monkeypatch):
    """The list is part of what appears by one rename; killed before that, the folder has no model."""
    from rococo_jax.checkpoints import model_directory

    def killed(*_):
        raise SystemExit("killed")

    def killed_in_the_model(folder, images, write=model_directory.write_training_images):
        return killed() if ".model." in str(folder) else write(folder, images)

    monkeypatch.setattr(model_directory, "write_training_images", killed_in_the_model)
    with pytest.raises(SystemExit):
        run.run_training(config_of(data), tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
    monkeypatch.undo()
    assert images_of(run.run_training(config_of(data), tmp_path / "run").model).keys == keys_of(data, range(TRAINED))


def test_no_image_is_read_between_the_last_step_and_saving_the_model(data, tmp_path):
    """Preempted machines die there."""
    images = tmp_path / "images"
    shutil.copytree(data / "images", images)

    def remove(done, state):
        if done == 2:
            shutil.rmtree(images)

    done = run.run_training(config_of(data, data__images=str(images)), tmp_path / "run", on_step=remove)
    assert images_of(done.model).keys == keys_of(data, range(TRAINED))


def test_a_run_on_a_folder_and_tars_lists_the_images_of_both(data, tmp_path):
    words = ["pack", "--images", str(data / "images"), "--captions", str(data / "others.json"), "--shards", "2"]
    assert main([*words, "--out", str(tmp_path / "tars")]) == 0
    config = config_of(data, data__images=f"{data / 'images'},{tmp_path / 'tars'}")
    images = images_of(run.run_training(config, tmp_path / "run").model)
    assert images.keys == keys_of(data, range(IMAGES)) and images.complete
