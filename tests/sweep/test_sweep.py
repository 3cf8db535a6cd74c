"""`rococo sweep`: the right points, killed and resumed, one table whose means are those of the runs, and bad input."""

import csv
import errno
import json
import re
import shlex
import shutil
import statistics
import xml.etree.ElementTree
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.cli.main import main
from rococo_jax.errors import DiskFull, InputError
from rococo_jax.evaluation.results import read_results
from rococo_jax.evaluation.stored_counts import read_counts
from rococo_jax.sweep.axes import choose_arms, parse_axes, parse_axis
from rococo_jax.sweep.collect import OverSeeds, Row, collect, estimates_of_task, summary_columns
from rococo_jax.sweep.page import panels_of, write_figures
from rococo_jax.sweep.plan import make_plan
from rococo_jax.sweep.running import (
    BEGUN,
    COMPLETE,
    TO_TRAIN,
    _influence_hash,
    plan_lines,
    point_lines,
    run_points,
    waiting_line,
)
from rococo_jax.sweep.tables import csv_rows, differences_of, scaled_keys, sweep_json
from rococo_jax.training.config import flat, read_config
from rococo_jax.training.run import run_training
from tests.report.test_kinds import choice_run
from tests.support.devices import all_devices_are
from tests.support.kills import Killed, watched
from tests.support.made_runs import make_run
from tests.support.models import change_json
from tests.support.paths import CHECKOUT
from tests.support.processes import run_command_together, run_lines
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.tiny_runs import FEATURES_ALONE, write_config_file
from tests.support.variants import describe
from tests.support.world import noise, write_world

IMAGES = 24
ABLATIONS = CHECKOUT / "configs" / "ablations"
SETTINGS = [(batch_size, seed) for seed in (0, 1) for batch_size in (8, 16)]


@pytest.fixture(scope="module", autouse=True)
def two_devices():
    """Runs and evaluations take all devices: here two, which compile and run sooner than eight."""
    with all_devices_are(2):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images, captions, altered captions, a model to start from, and a config whose heads are trained on features."""
    captions = [random_captions(5, seed=number, longest=7) for number in range(IMAGES)]
    # Few large blocks, so that images differ to a model of random weights.
    picture, altered, start = noise(3, 4, 12), {"danger": "{} tree".format}, tiny_encoder(name="start")
    folder = write_world(tmp_path_factory.mktemp("data"), captions, picture=picture, altered=altered, start=start)
    settings = {"steps": 6, "batch_size": 16, "init__residual_head_width": 8, "data__feature_pool__captions": 2}
    settings |= {"losses__sc__weight": 1.0, "losses__sc__select": "random", "log__every": 2, "checkpoint__every": 3}
    write_config_file(folder, **settings, **FEATURES_ALONE)
    with (folder / "config.py").open("a") as file:
        file.write(
            "\n\nfrom ml_collections import ConfigDict\n\n\ndef get_sweep():\n"
            "    return ConfigDict({'over': 'batch_size=8,16', 'seeds': '0,1', 'lr_scaling': 'square-root'})\n"
        )
    return folder


def command_of(data: Path, workdir: Path, *more: str) -> list[str]:
    images = ["--images", str(data / "images"), "--annotations", str(data / "annotations"), "--mixed-galleries", "none"]
    config = ["--config", str(data / "config.py"), "--workdir", str(workdir)]
    return ["sweep", *config, *images, "--precision", "high", *more]


def journal(workdir: Path) -> list[tuple[str, str]]:
    path = workdir / "journal.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [(line["point"], line["event"]) for line in lines]


@pytest.fixture(scope="module")
def swept(data, tmp_path_factory) -> Path:
    """A sweep of two batch sizes and two seeds whose file operations fail after its first run, and then run again."""
    workdir = tmp_path_factory.mktemp("swept") / "out"

    def kill(operation):
        if len(journal(workdir)) >= 2:
            raise Killed

    with pytest.raises(Killed):
        watched(workdir, kill, lambda: main(command_of(data, workdir)))
    assert len(journal(workdir)) == 2
    assert not (workdir / "sweep.csv").exists()
    assert main(command_of(data, workdir)) == 0
    return workdir


def folder_of(workdir: Path, batch_size: int, seed: int) -> Path:
    return workdir / "points" / f"batch_size_{batch_size}-{seed}"


def results_of(workdir: Path, batch_size: int, seed: int) -> dict:
    return json.loads((folder_of(workdir, batch_size, seed) / "evaluation" / "results.json").read_text())


def metrics_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_killed_sweep_resumes_without_repeating_work(data, swept, capsys):
    assert sorted(journal(swept)) == sorted(
        (f"batch_size_{b}-{s}", event) for b, s in SETTINGS for event in ("trained", "evaluated")
    )
    assert results_of(swept, 8, 0)["fingerprint"]["model"]["precision"] == "high"
    before = {
        path: path.read_bytes() for path in swept.rglob("*") if path.suffix in (".csv", ".json", ".jsonl", ".svg")
    }
    (swept / ".sweep.md.0123abcd.part").write_text("| half a li")  # of one that was killed while it wrote the table
    assert main(command_of(data, swept)) == 0
    assert "4 done" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert not [path for path in swept.iterdir() if path.name.startswith(".sweep")]


@pytest.mark.slow
def test_benchmarks_are_added_to_all_points_without_training_again(data, swept, tmp_path, capsys):
    workdir = shutil.copytree(swept, tmp_path / "out")
    done = journal(workdir)
    mixed = ["--over", "batch_size=8", "--seeds", "0", "--mixed-galleries", "mix_0.9", "--mixing-seeds", "1"]
    assert main(command_of(data, workdir, *mixed)) == 0
    assert journal(workdir) == [*done, ("batch_size_8-0", "evaluated")]
    # A mean over both seeds of the training is of one request, although no mixed gallery is requested now.
    assert main(command_of(data, workdir, "--over", "batch_size=8")) == 0
    assert journal(workdir) == [*done, ("batch_size_8-0", "evaluated"), ("batch_size_8-1", "evaluated")]
    for seed in (0, 1):
        now, before = results_of(workdir, 8, seed), results_of(swept, 8, seed)
        assert now["sizes"]["text_to_image"]["mix_0.9"]["seeds"] == [1]
        assert now["tasks"]["image_to_text"] == before["tasks"]["image_to_text"]
    (row,) = json.loads((workdir / "sweep.json").read_text())["rows"]
    assert "mix_0.9" in row["tasks"]["text_to_image"] and row["seeds"] == [0, 1]
    capsys.readouterr()
    assert main(command_of(data, workdir, "--protocol", "strict")) == 2
    assert "fingerprint: protocol: found results of 'batch_size_8-0' with paper" in capsys.readouterr().err


@pytest.mark.slow
def test_every_batch_size_uses_the_same_samples_with_a_scaled_learning_rate(swept):
    configs = {b: json.loads((folder_of(swept, b, 0) / "config.json").read_text()) for b in (8, 16)}
    assert {b: config["steps"] for b, config in configs.items()} == {8: 12, 16: 6}
    rates = {b: config["optimizer.learning_rate"] for b, config in configs.items()}
    # Six digits are kept of a rate.
    assert rates[8] == pytest.approx(rates[16] / 2**0.5, rel=1e-5)
    assert [line["step"] for line in metrics_of(folder_of(swept, 8, 0))] == [1, 4, 8, 12]


@pytest.mark.parametrize("k", [0.5, 2, 4])
def test_scaling_the_batch_size_scales_steps_and_rates_by_their_rules(data, k):
    base = {"ema": 0.99, "optimizer.warmup_steps": 4, "optimizer.learning_rate": 0.01, "steps": 8}
    size = int(16 * k)

    def plan_of(without=(), **options):
        words = [f"--config.{key}={value}" for key, value in base.items() if key not in without]
        options = {"over": [f"batch_size={size},16"], "seeds": (0,), "lr_scaling": "square-root", **options}
        return make_plan(data / "config.py", words, **options)

    plan = plan_of()
    point = plan.points[0]
    config = flat(point.config)
    # Warmup and the moving average cover the same number of samples.
    assert config["optimizer.learning_rate"] == pytest.approx(0.01 * k**0.5, rel=1e-5)
    assert config["optimizer.warmup_steps"] * size == 4 * 16 and config["steps"] * size == 8 * 16
    assert np.log(config["ema"]) / size == pytest.approx(np.log(0.99) / 16, rel=1e-5)
    assert {key: config[key] for key in point.derived_keys} == dict(point.derived_keys)
    assert {*base} <= {*point.derived_keys}
    assert plan.points[1].derived_keys == {}
    heads, rows = scaled_keys(plan)
    assert heads[0] == "batch_size" and {row[0] for row in rows} == {str(size), "16"}
    # With equal steps or a constant rate fewer keys are derived; a value that an arm sets stays.
    for other, keys in (
        (plan_of(keep="steps"), {"optimizer.learning_rate"}),
        (plan_of(lr_scaling="constant"), {*point.derived_keys} - {"optimizer.learning_rate"}),
        (plan_of(("ema",), arms=["fast: ema=0.5"]), {*point.derived_keys} - {"ema"}),
    ):
        assert {*other.points[0].derived_keys} == keys
    rate = flat(plan_of(lr_scaling="linear").points[0].config)["optimizer.learning_rate"]
    assert rate == pytest.approx(0.01 * k, rel=1e-5)


@pytest.mark.slow
def test_the_table_contains_means_and_spreads_over_seeds(swept):
    table = json.loads((swept / "sweep.json").read_text())
    assert [row["values"] for row in table["rows"]] == [{"batch_size": 8}, {"batch_size": 16}]
    rows = list(csv.DictReader((swept / "sweep.csv").open()))
    assert {(row["task"], row["variant"]) for row in rows} == {
        *(("image_to_text", variant) for variant in ("clean", "danger", "altered")),
        ("text_to_image", "clean"),
    }
    for row in rows:
        size, variant = int(row["batch_size"]), {"altered": "danger"}.get(row["variant"], row["variant"])
        for metric in ("r1", "fr1", "drop"):
            runs = [results_of(swept, size, seed)["tasks"][row["task"]][variant].get(metric) for seed in (0, 1)]
            if None in runs:
                assert row[metric] == ""
                continue
            assert float(row[metric]) == pytest.approx(sum(runs) / 2)
            assert float(row[f"{metric}_sd"]) == pytest.approx(statistics.stdev(runs))
        logs = [metrics_of(folder_of(swept, size, seed)) for seed in (0, 1)]
        assert float(row["loss"]) == pytest.approx((logs[0][-1]["loss"] + logs[1][-1]["loss"]) / 2)
        rates = [statistics.median(line["images_per_second"] for line in log[1:]) for log in logs]
        assert float(row["images_per_second"]) == pytest.approx(sum(rates) / 2)
    memory = {int(row["batch_size"]): float(row["memory_bytes_per_device"]) for row in rows}
    assert 0 < memory[8] < memory[16]


@pytest.mark.slow
def test_every_table_contains_the_notes_of_all_runs(swept, capsys, data):
    notes = {note for b, s in SETTINGS for note in results_of(swept, b, s)["notes"]}
    assert any("the model was trained on, and their numbers are no result" in note for note in notes)
    assert main([*command_of(data, swept), "--collect"]) == 0
    printed = capsys.readouterr().out
    page, markdown = ((swept / f"sweep.{suffix}").read_text() for suffix in ("html", "md"))
    stored = json.loads((swept / "sweep.json").read_text())["notes"]
    rows = list(csv.DictReader((swept / "sweep.csv").open()))
    for note in notes:
        (line,) = [each for each in stored if note in each]
        assert all(re.sub(r"\W", "", note) in re.sub(r"\W", "", text) for text in (printed, markdown))
        assert note in unescape(page)
        assert any(note in row["notes"] for row in rows)
        assert len(line) == len(note) or line.endswith(note)


def test_a_run_counted_twice_has_almost_the_intervals_of_its_results(tmp_path):
    """Without a spread over seeds images alone count: a normal interval from the same draws, here of 60 images."""
    run = make_run(tmp_path / "run", "one", noise=1.0)
    results = read_results(run / "results.json")
    counts = read_counts(run / "per_query.parquet", results)
    figures = estimates_of_task([results, results], [counts, counts], "image_to_text")["danger"]
    for metric in ("r1", "fr1", "drop"):
        low, high = results["intervals"]["image_to_text"]["danger"][metric]
        bounds = figures[metric].low, figures[metric].high
        assert low < high and bounds == pytest.approx((low, high), abs=0.1 * (high - low))


def test_the_mean_over_altered_variants_includes_only_alterations():
    """Unaltered, control, corrupted and unseen images are no alterations."""
    r1 = {"clean": 60.0, "same_concept": 45.0, "danger": 35.0, "control": 50.0, "uncorrupted": 58.0, "fog_3": 10.0}
    variants = {name: {"r1": value, "fr1": value / 2} for name, value in r1.items()}
    variants |= {f"{name}/unseen": {"r1": 1.0, "fr1": 99.0} for name in r1}
    results = {"kinds": {"image_to_text": "rank"}, "tasks": {"image_to_text": variants}, "intervals": {}}
    results |= {"variants": {"image_to_text": describe(variants)}}
    figures = estimates_of_task([results], [{}], "image_to_text")["altered"]
    assert (figures["r1"].value, figures["fr1"].value) == (40.0, 20.0)


@pytest.mark.slow
def test_the_interval_of_one_seed_equals_that_of_its_results(data, swept):
    asked = [("image_to_text", "danger", metric) for metric in ("r1", "fr1", "drop")]
    for row in collect(make_plan(data / "config.py", seeds=(1,)), swept):
        intervals = results_of(swept, row.values[0], 1)["intervals"]
        for task, variant, metric in (*asked, ("text_to_image", "clean", "r1")):
            figure, wanted = row.tasks[task][variant][metric], intervals[task][variant][metric]
            assert figure.spread is None
            interval = [figure.low, figure.high] if figure.has_interval else None
            # Sums in another order; drop is None where a draw has no clean hit.
            assert interval == (None if wanted is None else pytest.approx(wanted, abs=1e-9))


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_run_a_sweep_with_the_same_results_as_one(data, swept, tmp_path):
    """Sweep points one after another on all hosts, with the table of one process of two devices."""
    said = run_command_together(command_of(data, tmp_path, "--no-cache", "--over", "batch_size=16"), 2)
    assert journal(tmp_path) == [(f"batch_size_16-{s}", event) for s in (0, 1) for event in ("trained", "evaluated")]
    assert said.count("table: ") == 1 and "by 2 processes" in said
    for seed in (0, 1):
        losses = [[line["loss"] for line in metrics_of(folder_of(out, 16, seed))] for out in (tmp_path, swept)]
        # Reductions over other numbers of devices have another order.
        np.testing.assert_allclose(*losses, rtol=1e-5)
    plan = make_plan(data / "config.py", over=["batch_size=16"])
    expected = sweep_json(plan, collect(plan, swept), {}, dict.fromkeys([each.run for each in plan.runs], ""))
    rows, expected_rows = (
        json.loads((tmp_path / "sweep.json").read_text())["rows"],
        json.loads(json.dumps(expected))["rows"],
    )
    assert [(row["tasks"], row["seeds"]) for row in rows] == [(row["tasks"], [0, 1]) for row in expected_rows]


FAILING = """
from html import unescape
from pathlib import Path
from rococo_jax import processes
from rococo_jax.sweep import running
from rococo_jax.sweep.plan import make_plan
plan = make_plan("{config}", over=["losses.sc.weight=1,2"], seeds=(0,))
running.is_evaluated = lambda folder: True
for failing in ((0, 1), (1,)):
    workdir = Path("{workdir}") / str(len(failing))
    def train_one(point):
        (workdir / f"{{point.run}}.{{me}}").touch()
        if point.run == plan.runs[0].run and me in failing:
            raise InputError("file", "field", "found", "wanted")
        if point.run == plan.runs[0].run:
            barrier("a step")
    failed = running.run_points(plan, workdir, None, train_one)
    assert len(failing) == 2 and list(failed) == [plan.runs[0].run], failed
    processes.current_group().timeout = 1  # process 0 has no error of its own to tell
"""


@pytest.mark.slow
def test_a_point_that_fails_in_all_processes_is_skipped_and_a_failure_in_one_ends_the_sweep(data, tmp_path):
    for folder in "12":
        (tmp_path / folder).mkdir()
    ended = run_lines(FAILING.format(config=data / "config.py", workdir=tmp_path), 2, timeout=8)
    runs = {folder: len([*(tmp_path / folder).glob("*.[01]")]) for folder in "12"}
    assert runs == {"1": 2, "2": 4} and journal(tmp_path / "2")[0][1] == "failed"
    assert [code for code, _ in ended] == [2, 2], ended
    assert all("file: field: found found; wanted wanted" in said for _, said in ended)


@pytest.mark.slow
def test_a_point_gives_the_same_run_as_its_printed_command(data, swept, tmp_path, capsys):
    """Compare with and without the model, the data and the features of the runs before it."""
    assert main([*command_of(data, tmp_path), "--print-commands"]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(words[5]).name for words in commands] == [f"batch_size_{b}-{s}" for b, s in SETTINGS]
    config = read_config(commands[-1][3], commands[-1][6:])
    run_training(config, tmp_path / "alone")
    losses = [[line["loss"] for line in metrics_of(run)] for run in (tmp_path / "alone", folder_of(swept, 16, 1))]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_failed_point_is_reported_and_the_others_are_kept(data, swept, tmp_path, capsys, refusal):
    """A batch of 32 needs 32 images."""
    swept = shutil.copytree(swept, tmp_path / "out")
    before = (swept / "sweep.csv").read_bytes()
    assert main(command_of(data, swept, "--over", "batch_size=8,16,32", "--seeds", "0,1")) == 1
    told = capsys.readouterr().err
    assert "batch_size_32-0 failed" in told and "1 to 24" in told
    table = json.loads((swept / "sweep.json").read_text())
    assert [point["name"] for point in table["points"] if "error" in point] == ["batch_size_32-0", "batch_size_32-1"]
    assert (swept / "sweep.csv").read_bytes() == before
    assert "batch\\_size\\_32-0" in (swept / "sweep.md").read_text()
    assert "collect" in refusal(*command_of(data, swept, "--dry-run", "--collect")).splitlines()[-1]
    assert "images" in refusal(*command_of(data, tmp_path / "x", "--config.data.images=nowhere")).splitlines()[-1]


@pytest.mark.parametrize("error", [DiskFull("model", "disk", "1 byte", "2"), OSError(errno.ENOSPC, "full")])
def test_a_full_disk_stops_the_sweep_at_once(error, tmp_path):
    asked = []

    def train_one(point):
        asked.append(point)
        raise error

    with pytest.raises(type(error)):
        run_points(make_plan(ABLATIONS / "mixing_ratio.py"), tmp_path, None, train_one)
    assert len(asked) == 1


def test_each_setting_is_compared_with_the_first_like_any_other_comparison():
    plan = make_plan(CHECKOUT / "configs" / "scenes_tiny.py", over=["batch_size=8,16"], seeds=(0, 1, 2))
    rows = []
    for size, blind, recall in ((8, 48.0, 50.0), (16, 70.0, 30.0)):
        draws, estimates = np.random.default_rng(size).normal(0, 1, (200, 1)), {}
        for name, mean in (("blind", blind), ("r1", recall)):
            of_seeds = mean + np.array([-1.0, 0.0, 1.0])
            estimates[name] = OverSeeds(mean, values=of_seeds, resampled=of_seeds + draws)
        config = {"steps": 1, "batch_size": size, "learning_rate": 0.1}
        results = {"kinds": {"task": ""}, "tasks": {"task": {"clean": {}}}}
        rows.append(Row("", (size,), (0, 1, 2), config, {}, {"task": {"clean": estimates}}, [results]))
    differences = {each.metric: each for _, each in differences_of(plan, rows)}
    assert {(each.model, each.reference) for each in differences.values()} == {("batch_size 16", "batch_size 8")}
    # Blind is compared by its distance from 50: 20 instead of 2.
    assert (differences["r1"].points, differences["blind"].points) == (-20.0, pytest.approx(18.0))
    assert (differences["r1"].verdict, differences["blind"].verdict) == ("worse", "text bias")
    assert all(not each.low <= 0 <= each.high and each.p < 0.05 for each in differences.values())
    (stored, _) = sweep_json(plan, rows, {}, dict.fromkeys((point.run for point in plan.points), ""))["differences"]
    assert stored.keys() > {"model", "reference", "points", "low", "high", "p", "p_corrected", "verdict", "values"}


@pytest.mark.slow
def test_the_picture_needs_no_other_file_and_shows_every_curve(data, swept):
    for name in ("sweep.svg", "sweep.html"):
        text = (swept / name).read_text()
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    drawn = xml.etree.ElementTree.parse(swept / "sweep.svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    plan = make_plan(data / "config.py")
    panels = panels_of(plan, collect(plan, swept))
    assert [panel.name for panel in panels] == [
        "Image to text: R@1", "Image to text: FR@1, altered", "Image to text: Drop of R@1, altered",
        "Text to image: R@1", "Images a second", "Memory of a step on a device", "Loss at the end",
    ]  # fmt: skip
    circles = drawn.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == sum(len(curve.points) for panel in panels for curve in panel.curves)


def test_a_dry_run_trains_nothing(data, tmp_path, capsys):
    workdir = tmp_path / "out"
    assert main(command_of(data, workdir, "--dry-run")) == 0
    told = capsys.readouterr()
    assert "sweep of 4 points: 2 of batch_size x 2 seeds\n" in told.err and "4 to train" in told.err
    assert told.out.splitlines()[0].split("  ")[-1].strip() == "12 steps of 8, learning rate 0.000707107: to train"
    assert not workdir.exists()
    assert main(command_of(data, workdir, "--collect")) == 0
    assert "4 of 4 runs are not done yet" in capsys.readouterr().err


def test_points_with_the_same_config_share_one_run(tmp_path):
    arms = ("sc: losses.vc.weight=0", "vc: losses.sc.weight=0", "sc-vc:")
    weights = ("losses.sc.weight+losses.vc.weight=0,0.25,0.5,1,2,4",)
    plan = make_plan(CHECKOUT / "configs" / "coco_lit.py", over=weights, arms=arms, seeds=(0, 1))
    at_zero = [point for point in plan.points if point.values == (0.0,)]
    assert len(plan.points) == 36 and len(plan.runs) == 32
    assert {(point.run, point.seed) for point in at_zero} == {(at_zero[0].run, 0), (at_zero[3].run, 1)}
    assert [point.arm for point in at_zero[:3]] == ["sc", "vc", "sc-vc"]
    first = next(plan_lines(plan, tmp_path, None))
    assert first.endswith("x 2 seeds; 32 runs, as 4 points have the config of another point")
    lines = list(point_lines(plan, tmp_path, None))
    shared = [point.name for point in plan.points if point.name != point.run]
    assert [line.split()[0] for line in lines if "(as " in line] == shared and len(shared) == 4
    assert sum(line.endswith(f"(as {at_zero[0].run})") for line in lines) == 2


def test_influence_is_computed_once_for_each_starting_model():
    plan = make_plan(CHECKOUT / "configs" / "coco_lit.py", over=("losses.sc.weight=1,2",), seeds=(0, 1))
    assert len({_influence_hash(point) for point in plan.runs}) == 1


def test_failed_runs_are_not_counted_as_waiting():
    states = {"a": COMPLETE, "b": TO_TRAIN, "c": BEGUN}
    line = "are not done yet"
    assert waiting_line(states, {}) == f"2 of 3 runs {line}"
    assert waiting_line(states, {"c": "broken"}) == f"1 of 3 runs {line}"
    assert waiting_line(states, {"b": "broken", "c": "broken"}) is None


def choice_rows(tmp_path) -> list[Row]:
    """Return rows of a sweep whose models were evaluated on choices: of two seeds, and of one."""
    folders = [choice_run(tmp_path / str(seed), "m", 60, seed) for seed in (0, 1)]
    results = [read_results(folder / "results.json") for folder in folders]
    runs = [read_counts(folder / "per_query.parquet", each) for folder, each in zip(folders, results, strict=True)]
    config = {"steps": 1, "batch_size": 8, "learning_rate": 0.1}
    rows = []
    for count in (2, 1):
        tasks = {task: estimates_of_task(results[:count], runs[:count], task) for task in results[0]["tasks"]}
        rows.append(Row("", (8 * count,), (0, 1)[:count], config, {}, tasks, results[:count]))
    return rows


def test_choices_and_unknown_kinds_of_tasks_have_their_metrics_in_the_table(data, tmp_path):
    rows = choice_rows(tmp_path)
    parts = [row.tasks["sugarcrepe"] for row in rows]
    # Several seeds have an interval where there are items, the mean too; of one seed it is that of the results.
    assert parts[0]["swap_att"]["ota"].has_interval and parts[0]["mean"]["ota"].has_interval
    assert parts[0]["swap_att"]["ota"].spread is not None and parts[1]["swap_att"]["ota"].low == 10.0
    assert not any("altered" in variants for variants in parts)
    assert [column for column in summary_columns(rows) if column[0] == "sugarcrepe"] == [("sugarcrepe", "mean", "ota")]
    plan = make_plan(data / "config.py")
    heads, *cells = csv_rows(plan, rows)
    table = [dict(zip(heads, row, strict=True)) for row in cells]
    assert all(row["ota"] != "" for row in table if row["variant"] in ("mean", "swap_att"))
    assert any(row["points_won"] == 12.345 for row in table if row["task"] == "word_game")
    page = write_figures(plan, rows, tmp_path, {})
    assert "| OTA" in page.with_suffix(".md").read_text()
    assert {panel.name for panel in panels_of(plan, rows)} >= {"SugarCrepe: OTA", "Word game: points won"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--over", "batch_sise=8,16"], "did you mean 'batch_size'?"),
        (["--over", "batch_size=8,8"], "8 twice"),
        (["--over", "optimizer.learning_rate=0.5,.5"], ".5 twice"),
        (["--over", "batch_size=8,,16"], "an empty value"),
        (["--over", "batch_size="], "no values"),
        (["--over", "batch_size"], "KEY=VALUE"),
        (["--over", "batch_size=8", "--over", "batch_size=16"], "batch_size twice"),
        (["--over", "batch_size=8,many"], "a whole number"),
        (["--over", "losses.sc.scope=local,all"], "'local' or 'global'"),
        (["--over", "batch_size=8,3"], "a multiple of 2"),
        (["--over", "batch_size=8,40"], "the 96 samples (6 steps of 16)"),
        (["--over", "seed=0,1"], "wanted --seeds: the table has means over seeds"),
        (["--over", "batch_size=8", "--over", "seed=0,1"], "key: found 'seed'; wanted --seeds"),
        (["--seeds", "0,0"], "0 twice"),
        (["--seeds", "one"], "whole numbers"),
        (["--config.seed=3"], "(seeds does)"),
        (["--arm", "plain"], "'plain'"),
        (["--arm", "a/b: losses.sc.weight=0"], "'a/b'"),
        (["--arm", "a: losses.sc.weight"], "KEY=VALUE"),
        (["--arm", "a: losses.sc.weight=0", "--config.losses.sc.weight=2"], "arm 'a' does"),
        (["--protocol", "strict", "--mixed-galleries", "blend_0.9"], "blend_0.9"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, named, data, tmp_path, refusal):
    assert named in refusal(*command_of(data, tmp_path / "out", *arguments)).splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_images_without_annotations_and_folders_of_other_runs_are_refused(data, swept, refusal):
    command = ["sweep", "--config", str(data / "config.py"), "--workdir", str(swept), "--images", str(data / "images")]
    assert "--annotations" in refusal(*command).splitlines()[-1]
    assert "config.ema" in refusal(*command_of(data, swept, "--config.ema=0.5")).splitlines()[-1]
    assert "fingerprint: protocol" in refusal(*command_of(data, swept, "--protocol", "strict")).splitlines()[-1]


@pytest.mark.slow
def test_points_that_were_trained_from_different_weights_are_refused(data, swept, tmp_path, refusal):
    """The folder of `init.model` was written anew between two parts of a sweep."""
    changed = shutil.copytree(swept, tmp_path / "changed")

    def other_start(description):
        description["provenance"]["started_from"]["weights_sha256"] = "0" * 64

    change_json(folder_of(changed, 16, 1) / "origin" / "model.json", other_start)
    message = refusal(*command_of(data, changed)).splitlines()[-1]
    assert f"batch_size_16-1: weights of {data / 'start'}: found SHA-256 000000000000...; wanted " in message


def test_axes_and_arms_are_parsed_as_written():
    axis = parse_axis("losses.sc.weight+losses.vc.weight=0, 1")
    assert axis.keys == ("losses.sc.weight", "losses.vc.weight") and axis.texts == ("0", "1")
    assert parse_axis("losses.sc.variants=danger;danger,rand_voca").texts == ("danger", "danger,rand_voca")
    arms = choose_arms(["sc: losses.sc.weight=1", "plain"], ["plain: losses.sc.weight=0", "other:"])
    assert [(arm.name, dict(arm.overrides)) for arm in arms] == [
        ("sc", {"losses.sc.weight": "1"}),
        ("plain", {"losses.sc.weight": "0"}),
    ]
    with pytest.raises(InputError, match="nothing"):
        parse_axes(())
