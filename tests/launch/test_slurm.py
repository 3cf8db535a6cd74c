"""Test `launch/slurm.py`: the batch script contains what a run needs, and a run that was stopped is queued again."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launchers import AWKWARD, CONFIG, HASH, NAME, TRAIN, check_by, config_hash, dry, launch
from tests.support.paths import CHECKOUT


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts shell scripts first on the PATH as programs; each appends its words to `calls`."""
    calls, folder = tmp_path / "calls", tmp_path / "bin"
    calls.touch()
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, lines: str):
        (folder / name).write_text(f'#!/bin/bash\nprintf "%s\\n" "{name} $*" >> {calls}\ncd {tmp_path}\n{lines}\n')
        (folder / name).chmod(0o755)
        return calls

    return put


def test_the_hash_depends_on_the_config_and_on_the_final_values_of_overrides():
    assert config_hash("--config.steps=3", "--config.seed=1") == config_hash("--config.seed=1", "--config.steps=3")
    assert config_hash("--config.steps=9", "--config.steps=3") == config_hash("--config.steps=3")
    assert len({config_hash(), config_hash("--config.steps=3"), config_hash("--config.steps=4")}) == 3
    # Neither key nor value can run into its neighbour.
    assert config_hash("--config.a=1b=2") != config_hash("--config.a=1", "--config.b=2")


def test_a_sweep_is_launched_like_a_run():
    """All tasks get the sweep's own options; its table, not a model, says that it is done."""
    sweep = ["sweep", "--config", CONFIG, "--over", "batch_size=8,16", "--seeds=0,1", "--config.steps=3"]
    script = dry(train=sweep)
    (words,) = re.findall(r"-m rococo_jax (sweep .*) \|\| code=", script)
    words = shlex.split(words)
    name = Path(words[words.index("--workdir") + 1]).name
    options = ["--over", "batch_size=8,16", "--seeds=0,1", "--config.steps=3"]
    assert words == ["sweep", "--config", str(CHECKOUT / CONFIG), "--workdir", str(CHECKOUT / "runs" / name), *options]
    others = [*sweep[:-3], "batch_size=8,32", *sweep[-2:]]
    assert name.startswith("rococo-scenes-tiny-") and name not in dry(train=others)
    assert f"/{name}/sweep.json" in script and "/model" not in script


@pytest.mark.parametrize("coordinator", ["first-host", "auto"])
def test_the_slurm_script_requests_nodes_gpus_and_time_of_the_run(tmp_path, coordinator):
    own = ["--nodes", "2", "--gpus", "4", "--time", "1:00:00", "--coordinator", coordinator]
    text = dry(*own, "--sbatch=--partition=gpu", "--setup", "module load cuda")
    (tmp_path / "job.sh").write_text(text)
    check_by("shellcheck", tmp_path / "job.sh")
    options = set(re.findall("^#SBATCH (.*)$", text, re.MULTILINE))
    assert options >= {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=1:00:00"}
    assert options >= {"--requeue", "--signal=TERM@120", "--partition=gpu", f"--job-name={NAME}"}
    assert f"--comment=config-hash={HASH}" in options and "\nmodule load cuda\n" in text
    assert ("ROCOCO_COORDINATOR=auto" in text) == (coordinator == "auto")


@pytest.mark.parametrize(
    ("end", "code"), [("model", 0), ("stopped", 0), ("stopped at once", 128 + signal.SIGTERM), ("failed", 7)]
)
def test_the_slurm_script_runs_all_tasks_and_requeues_stopped_runs(tmp_path, programs, end, code):
    """Run the batch script with substitutes for SLURM's programs."""
    seen, workdir, python = tmp_path / "seen.json", tmp_path / "a workdir", tmp_path / "python"
    write = f"import json, os, sys; json.dump([dict(os.environ), sys.argv], open({str(seen)!r}, 'w'))"
    python.write_text(f'#!/bin/bash\n{shlex.join([sys.executable, "-c", write])} "$@"\n')
    python.chmod(0o755)
    finish = f"mkdir -p {shlex.quote(str(workdir / 'model'))}" if end == "model" else f"exit {code}"
    calls = programs("srun", f'SLURM_PROCID=5 "${{@:2}}"\n{finish}')
    programs("scontrol", 'if [[ "$1" == show ]]; then printf "node7\\nnode8\\n"; fi')
    train = [*TRAIN, "--workdir", str(workdir)]
    text = dry("--nodes", "2", "--gpus", "4", "--python", str(python), train=train)
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "41234"}
    done = subprocess.run(["bash"], input=text, text=True, env={**os.environ, **job}, capture_output=True)
    assert done.returncode == code, done.stderr
    environment, words = json.loads(seen.read_text())
    # 20000 + 41234 % 20000
    expected = {"ROCOCO_COORDINATOR": "node7:21234", "ROCOCO_PROCESSES": "8", "ROCOCO_PROCESS": "5"}
    assert environment.items() >= expected.items()
    assert words[1:3] == ["-m", "rococo_jax"]
    assert words[3:] == ["train", "--config", str(CHECKOUT / CONFIG), "--workdir", str(workdir), *AWKWARD]
    assert ("scontrol requeue 41234" in calls.read_text()) == ("stopped" in end)


def test_a_job_that_is_queued_already_is_not_submitted_again(programs, tmp_path):
    programs("squeue", "if [[ -e queue ]]; then cat queue; fi")
    calls = programs("sbatch", 'cat > script; echo "12 RUNNING" > queue; echo "12;cluster"')
    first, second = launch(), launch()
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "job 12" in first.stderr and "there already as job 12 RUNNING" in second.stderr
    assert calls.read_text().count("sbatch") == 1
    assert (tmp_path / "script").read_text() == dry()


@pytest.mark.parametrize(
    ("own", "train", "said"),
    [
        ([], [], "command after --: found nothing; wanted -- train"),
        ([], ["evaluate"], "found 'evaluate'"),
        ([], ["train", "--config", "configs/none.py"], "configs/none.py: config: found nothing there"),
        ([], ["train", "--config", CONFIG, "steps"], "override: found 'steps'; wanted --config.key=value"),
        ([], ["sweep", "--config", CONFIG, "--collect"], "sweep: found --collect; wanted a sweep that trains"),
        (["--time", "soon"], TRAIN, "--time: found 'soon'"),
    ],
)
def test_bad_input_is_reported_in_one_line(own, train, said):
    done = launch(*own, "--dry-run", train=train)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert said in done.stderr


def test_the_error_of_a_failing_program_is_quoted_and_a_missing_program_is_named(programs, tmp_path, monkeypatch):
    programs("squeue", 'echo "error: no such cluster" >&2; exit 1')
    for said in ("found error: no such cluster", "squeue: program: found nothing of that name on the PATH"):
        done = launch()
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert said in done.stderr
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
