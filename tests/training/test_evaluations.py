"""A run that is stopped, or whose evaluation fails, has the evaluations and the best checkpoint of an unbroken one."""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

import rococo_jax
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.training import run
from tests.support.cases import further
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.tiny_runs import FEATURES_ALONE, Stopped, stop_after, tiny_config
from tests.support.world import write_world

IMAGES, STEPS = 16, 4
# By step: the best one is in the middle, so that a lost evaluation changes `@best`.
SCORES = {1: 0.1, 2: 0.9, 3: 0.3, 4: 0.5}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    captions = [random_captions(5, seed=number, longest=6) for number in range(IMAGES)]
    altered = {"danger": "{} q".format}
    folder = tmp_path_factory.mktemp("data")
    return write_world(folder, captions, altered=altered, start=tiny_encoder(name="start"))


def config_of(data: Path, **settings):
    common = {"steps": STEPS, "batch_size": 8, "checkpoint__every": 100, "checkpoint__keep": 1, **FEATURES_ALONE}
    common |= {"eval__every": 1, "eval__data": "read by nobody"}
    return tiny_config(data, **(common | settings))


def score(encoder: Encoder) -> dict[str, float]:
    """Return scores of the step, and a number of the weights, which must be the same ones."""
    step = encoder.provenance["trained"]["step"]
    return {"score": SCORES[step], "logit_scale": float(encoder.model.logit_scale[...])}


def evaluations_of(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "evaluations.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory, one_device) -> Path:
    workdir = tmp_path_factory.mktemp("unbroken") / "run"
    run.run_training(config_of(data), workdir, evaluate=score)
    assert [line["step"] for line in evaluations_of(workdir)] == [1, 2, 3, 4]
    return workdir


def assert_same_evaluations(workdir: Path, unbroken: Path) -> None:
    assert evaluations_of(workdir) == evaluations_of(unbroken)
    best, expected = (load_model(f"{each}@best") for each in (workdir, unbroken))
    assert best.provenance["trained"]["step"] == expected.provenance["trained"]["step"] == 2
    assert best.fingerprint() == expected.fingerprint()


def signal_at(step: int, number: int):
    def on_step(done, state):
        if done == step:
            os.kill(os.getpid(), number)

    return on_step


STOPS = list(itertools.product(range(1, STEPS + 1), (signal.SIGTERM, signal.SIGINT)))


@pytest.mark.parametrize(("step", "number"), further(STOPS, [(2, signal.SIGINT)], pytest.mark.thorough))
def test_no_evaluation_is_lost_if_a_signal_arrives_at_its_step(step, number, data, unbroken, tmp_path):
    stopped = run.run_training(config_of(data), tmp_path / "run", evaluate=score, on_step=signal_at(step, number))
    assert (stopped.stopped is None) == (step == STEPS), "nothing is left to stop in the last step"
    done = run.run_training(config_of(data), tmp_path / "run", evaluate=score)
    assert done.model is not None
    assert_same_evaluations(tmp_path / "run", unbroken)


@pytest.mark.parametrize("step", further([1, 2, 4], [1], pytest.mark.thorough))
def test_a_failed_evaluation_loses_no_training_step_and_runs_again_after_a_resume(step, data, unbroken, tmp_path):
    trained = []

    def fails(encoder: Encoder) -> dict[str, float]:
        if encoder.provenance["trained"]["step"] == step:
            raise RuntimeError("out of memory")
        return score(encoder)

    with pytest.raises(RuntimeError, match="out of memory"):
        run.run_training(config_of(data), tmp_path / "run", evaluate=fails)
    done = run.run_training(
        config_of(data), tmp_path / "run", evaluate=score, on_step=lambda done, state: trained.append(done)
    )
    assert done.resumed_from == step and trained == list(range(step + 1, STEPS + 1))
    assert_same_evaluations(tmp_path / "run", unbroken)


def test_a_run_killed_between_checkpoint_and_evaluation_evaluates_when_it_resumes(data, unbroken, tmp_path):
    for step in (2, 3):
        with pytest.raises(Stopped):
            run.run_training(config_of(data), tmp_path / "run", evaluate=score, on_step=stop_after(step))
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    (tmp_path / "run" / "evaluations.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:20]]))
    run.run_training(config_of(data), tmp_path / "run", evaluate=score)
    assert_same_evaluations(tmp_path / "run", unbroken)


def test_the_final_evaluation_runs_even_if_a_signal_arrives_in_the_last_step(data, tmp_path):
    config = config_of(data, eval__every=0)
    done = run.run_training(config, tmp_path / "run", evaluate=score, on_step=signal_at(STEPS, signal.SIGTERM))
    assert done.model is not None and [line["step"] for line in evaluations_of(tmp_path / "run")] == [STEPS]


def test_a_signal_between_two_evaluations_starts_no_further_evaluation(data, tmp_path):
    config = config_of(data, eval__every=2)
    run.run_training(config, tmp_path / "run", evaluate=score, on_step=signal_at(3, signal.SIGTERM))
    assert [line["step"] for line in evaluations_of(tmp_path / "run")] == [2]
    run.run_training(config, tmp_path / "run", evaluate=score)
    assert [line["step"] for line in evaluations_of(tmp_path / "run")] == [2, 4]


def test_training_from_python_runs_the_evaluations_of_its_config(data, tmp_path):
    """The same numbers as those of an evaluation of its checkpoint, training images marked."""
    named = {"eval__images": str(data / "images"), "eval__annotations": str(data / "annotations"), "eval__data": ""}
    done = rococo_jax.train(config_of(data, **named, eval__every=2, eval__seeds="1"), tmp_path / "run")
    lines = evaluations_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [2, 4]
    results = rococo_jax.evaluate(done.model, named["eval__images"], named["eval__annotations"], seeds=(1,))
    assert lines[-1]["image_to_text/danger/fr1"] == results["tasks"]["image_to_text"]["danger"]["fr1"]
    assert lines[-1]["image_to_text/clean/r1"] == results["tasks"]["image_to_text"]["clean"]["r1"]


def test_the_score_excludes_items_whose_images_were_used_in_training(data, tmp_path):
    items = json.loads((data / "captions.json").read_text())
    (tmp_path / "half.json").write_text(json.dumps(items[:8]))
    named = {"eval__images": str(data / "images"), "eval__annotations": str(data / "annotations"), "eval__data": ""}
    config = config_of(data, **named, eval__every=0, eval__seeds="1", data__captions=str(tmp_path / "half.json"))
    rococo_jax.train(config, tmp_path / "run")
    (line,) = evaluations_of(tmp_path / "run")
    unseen = [line[f"{task}/clean/unseen/r1"] for task in ("image_to_text", "text_to_image")]
    assert line["score"] == pytest.approx(sum(unseen) / 2)
