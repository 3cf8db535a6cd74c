"""The files of `launch/` for cluster engines: their fields, the group that processes find, and the end of a run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from rococo_jax.training.config import read_config
from tests.support import engines
from tests.support.cases import further
from tests.support.launchers import LAUNCH, check_by, read_run_command
from tests.support.paths import CHECKOUT
from tests.support.processes import Hosts, Process
from tests.support.programs import one_device
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import write_world

ENGINES = {
    "jobset-gpu": lambda *arguments: engines.jobset("gpu", *arguments),
    "jobset-tpu": lambda *arguments: engines.jobset("tpu", *arguments),
    "xpk": engines.xpk,
    "skypilot": engines.skypilot,
    "slurm": engines.slurm,
}
# Of JobSet's schema (kubernetes-sigs/jobset, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml), v1alpha2.
JOBSET_ACTIONS = {
    "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts",
}  # fmt: skip
JOBSET_KEYS = {"apiVersion", "kind", "metadata", "spec"}
JOBSET_SPEC_KEYS = {"failurePolicy", "network", "replicatedJobs", "startupPolicy", "successPolicy", "suspend"}
JOBSET_RULE_KEYS = {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"}


def jobsets() -> list[dict]:
    return list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))


def test_jobset_has_the_fields_of_its_schema():
    for document in jobsets():
        assert document.keys() == JOBSET_KEYS and document["spec"].keys() <= JOBSET_SPEC_KEYS
        assert (document["apiVersion"], document["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
        policy = document["spec"]["failurePolicy"]
        assert policy.keys() <= {"maxRestarts", "restartStrategy", "rules"}
        for rule in policy["rules"]:
            assert {"name", "action"} <= rule.keys() <= JOBSET_RULE_KEYS and rule["action"] in JOBSET_ACTIONS
            # The reason of a failed job to which the rule of the job's own policy leads.
            assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
        for replicated in document["spec"]["replicatedJobs"]:
            assert (
                {"name", "template"} <= replicated.keys() <= {"name", "template", "replicas", "groupName", "dependsOn"}
            )
            pods = replicated["template"]["spec"]
            assert pods["parallelism"] == pods["completions"] and pods["backoffLimit"] == 0
            # A job with a policy for failed pods must not restart containers itself (kubernetes.io, "Jobs").
            assert pods["template"]["spec"]["restartPolicy"] == "Never"


def test_jobs_of_the_jobset_are_valid_for_kubernetes():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in jobsets():
        for replicated in document["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": replicated["template"]["spec"]}
            kubernetes_validate.validate(job, "1.34", strict=True)


def test_skypilot_accepts_its_file():
    sky = pytest.importorskip("sky")
    task = sky.Task.from_yaml(str(LAUNCH / "skypilot.yaml"))
    (resources,) = task.resources
    assert resources.use_spot and resources.job_recovery["recover_on_exit_codes"] == [75]


def test_scripts_pass_shellcheck(tmp_path):
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{yaml.safe_load((LAUNCH / 'skypilot.yaml').read_text())['run']}")
    scripts = sorted(LAUNCH.glob("*.sh"))
    assert [script.name for script in scripts] == ["until_stopped.sh", "xpk.sh"]
    for script in (*scripts, tmp_path / "run.sh"):
        check_by("shellcheck", script)


def outputs_of(processes: list[Process]) -> list[bytes]:
    started = [
        subprocess.Popen(command, env=environment, cwd=CHECKOUT, stdout=subprocess.PIPE)
        for command, environment in processes
    ]
    return [process.communicate(timeout=60)[0] for process in started]


SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


@pytest.mark.parametrize("engine", further(ENGINES, ["slurm", "jobset-gpu"]))
def test_every_process_receives_its_group_and_its_command(tmp_path, engine):
    """A stand-in for `rococo` shows the environment that it gets."""
    words = ["train", "--config=scenes_tiny", f"--workdir={tmp_path}/run", "--config.steps=3"]
    job = ENGINES[engine](words, 2, tmp_path, [sys.executable, "-c", SHOW])
    coordinators = set()
    # Side by side: `until_stopped` looks for the end of its child once a second.
    for number, output in enumerate(outputs_of(job.processes)):
        shown, found = json.loads(output)
        assert read_run_command(found) == read_run_command(words)
        coordinators.add(shown["ROCOCO_COORDINATOR"])
        assert Path(shown["JAX_COMPILATION_CACHE_DIR"]).is_relative_to(tmp_path)
        if engine != "jobset-tpu":
            assert (shown["ROCOCO_PROCESSES"], shown["ROCOCO_PROCESS"]) == ("2", str(number))
    (coordinator,) = coordinators
    assert re.fullmatch("auto" if engine == "jobset-tpu" else r"(localhost|127\.0\.0\.1):\d+", coordinator)


@pytest.mark.parametrize("engine", further(["jobset-gpu", "jobset-tpu", "skypilot"], ["skypilot"]))
def test_launch_files_without_arguments_start_a_valid_run(tmp_path, engine):
    """Without other words they train with a config that comes with the project, whose keys exist."""
    (output,) = outputs_of(ENGINES[engine]([], 1, tmp_path, [sys.executable, "-c", SHOW]).processes)
    _, words = json.loads(output)
    run = read_run_command(words)
    assert run.workdir.startswith(str(tmp_path))
    assert read_config(run.config, run.overrides).data.order == "shards"


def test_xpk_leaves_the_detection_of_tpu_groups_to_jax(tmp_path):
    ((command, environment),) = engines.xpk(["train"], 1, tmp_path, [sys.executable, "-c", SHOW]).processes
    environment = {key: value for key, value in environment.items() if key not in ("NNODES", "NODE_RANK")}
    shown, _ = json.loads(subprocess.check_output(command, env=environment))
    assert shown["ROCOCO_COORDINATOR"] == "auto" and "ROCOCO_PROCESS" not in shown


@pytest.mark.parametrize("words", [["--cluster", "c"], ["--", "train", "--config.data.images=it's"]])
def test_the_xpk_script_refuses_words_that_its_manifest_cannot_contain(words):
    done = subprocess.run(["sh", LAUNCH / "xpk.sh", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1) and "found" in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_stopped_runs_are_restarted_and_bad_input_is_not(tmp_path, engine):
    restarts = ENGINES[engine](["train", "--config=scenes_tiny"], 1, tmp_path, ["true"]).restarts
    assert restarts([0, 0] if engine == "slurm" else [75, 0])
    # Bad input; a loss that diverged.
    assert not restarts([2, 2]) and not restarts([3, 3])


@pytest.mark.parametrize("shell", further(["sh", "bash"], ["sh"]))
def test_a_run_that_sigterm_stopped_requests_a_restart(shell):
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(int(sys.argv[1])))\n"
    # In short sleeps: a signal that comes between the print and the sleep does not wake it.
    script += "print('ready', flush=True)\nwhile sys.argv[2]: time.sleep(0.05)\nsys.exit(int(sys.argv[1]))"
    # 143 is 128 + SIGTERM: how a shell names the end of a command that has no handler.
    cases, started = ((0, "yes", 75), (143, "yes", 75), (5, "yes", 5), (0, "", 0), (5, "", 5)), []
    for code, signalled, expected in cases:
        command = [shell, str(LAUNCH / "until_stopped.sh"), sys.executable, "-c", script, str(code), signalled]
        started.append((subprocess.Popen(command, stdout=subprocess.PIPE), signalled, expected))
    # Side by side, as the script may look for the end of its child once a second.
    for running, signalled, _ in started:
        assert running.stdout.readline() == b"ready\n"
        if signalled:
            running.terminate()
    for running, _, expected in started:
        running.communicate(timeout=60)
        assert running.returncode == expected


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_resumes_under_every_engine_after_losing_a_host_or_being_stopped(tmp_path, monkeypatch):
    """One run of two processes: each engine resumes the run of the one before, and loses a process or is stopped."""
    monkeypatch.setenv("ROCOCO_TIMEOUT", "20")  # for processes that have lost another
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as in the image
    monkeypatch.setenv("XLA_FLAGS", one_device()["XLA_FLAGS"])
    captions = [[" ".join(np.random.default_rng(number).choice(WORDS, 3))] for number in range(24)]
    data = write_world(tmp_path / "data", captions, altered={}, start=tiny_encoder(name="start"))
    workdir = tmp_path / "run"
    words = ["train", "--config=coco_lit", f"--workdir={workdir}"]
    words += [f"--config.{each}" for each in (
        f"init.model={data}/start", f"data.images={data}/images", f"data.captions={data}/captions.json",
        "train.vision=all", "train.text=all", "init.residual_head_width=0", "data.cached_features=False",
        "data.feature_noise=0", "data.feature_pool.captions=4", "data.feature_pool.mixed=4",
        "data.workers=0", "steps=400", "batch_size=4", "log.every=1", "log.tensorboard=False",
        "checkpoint.every=5",
    )]  # fmt: skip

    def checkpoint() -> int:
        names = (path.name for path in (workdir / "checkpoints").glob("*"))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    for engine in (*ENGINES, "jobset-gpu"):
        job = ENGINES[engine](words, 2, tmp_path / "disk", [sys.executable, "-m", "rococo_jax"])
        with Hosts(job.processes, tmp_path / f"{engine} from {checkpoint()}") as hosts:
            before = checkpoint()
            if before and engine == "jobset-gpu":
                assert hosts.end(300) == [0, 0], hosts.said(0)
                break
            hosts.wait_until(lambda before=before: checkpoint() > before)
            if engine in ("jobset-gpu", "xpk"):
                hosts.lose(1)
                codes = hosts.end(100)
                assert codes[0] not in (0, 2, 3), hosts.said(0)
                # A shell names the signal that killed a process by 128 and its number.
                codes = [code if code >= 0 else 128 - code for code in codes]
            else:
                hosts.stop(0)
                codes = hosts.end(100)
                assert codes == ([0, 0] if engine == "slurm" else [75, 0]), hosts.said(0)
            assert job.restarts(codes)
            assert not before or f"resumed from step {before}" in hosts.said(0)
    steps = [json.loads(line)["step"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 401)) and (workdir / "model").is_dir()
