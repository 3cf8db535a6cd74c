"""Test clusters and clouds: dry runs contain what a real run needs; a run that was stopped is started again."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tests.support.launchers import AWKWARD, CONFIG, HASH, LAUNCH, NAME, TRAIN, check_by, config_hash, dry, launch
from tests.support.paths import CHECKOUT

TPU = "--zone us-west4-a --accelerator v5litepod-16 --runtime v2-alpha-tpuv5-lite --disk gs://kept".split()


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


def test_a_sweep_is_launched_like_a_run():
    """All processes get the sweep's own options; its table, not a model, says that it is done."""
    sweep = ["sweep", "--config", CONFIG, "--over", "batch_size=8,16", "--seeds=0,1", "--config.steps=3"]
    lines = dry("local", "--port", "4321", train=sweep).splitlines()
    words = [shlex.split(line)[shlex.split(line).index("sweep") :] for line in lines]
    name = words[0][words[0].index("--workdir") + 1]
    expected = ["sweep", "--config", CONFIG, "--workdir", name, "--over", "batch_size=8,16", "--seeds=0,1"]
    assert words == [[*expected, "--config.steps=3"]] * 2
    others = [*sweep[:-3], "batch_size=8,32", *sweep[-2:]]
    assert name.startswith("runs/rococo-scenes-tiny-") and name not in dry("local", train=others)
    script = dry("slurm", train=sweep)
    assert " -m rococo_jax sweep --config " in script and f"/{name}/sweep.json" in script and "/model" not in script
    assert f"follow /mnt/rococo/{name}/sweep.json" in dry("tpu", *TPU, train=sweep).replace("'", "")


# SLURM


@pytest.mark.parametrize("coordinator", ["first-host", "auto"])
def test_slurm_script_has_what_a_run_needs(tmp_path, coordinator):
    own = ["--nodes", "2", "--gpus", "4", "--time", "1:00:00", "--coordinator", coordinator]
    text = dry("slurm", *own, "--sbatch=--partition=gpu", "--setup", "module load cuda")
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
def test_slurm_script_runs_the_tasks_and_requeues_what_was_stopped(tmp_path, programs, end, code):
    """Run the batch script with substitutes for SLURM's programs."""
    seen, workdir, python = tmp_path / "seen.json", tmp_path / "a workdir", tmp_path / "python"
    write = f"import json, os, sys; json.dump([dict(os.environ), sys.argv], open({str(seen)!r}, 'w'))"
    python.write_text(f'#!/bin/bash\n{shlex.join([sys.executable, "-c", write])} "$@"\n')
    python.chmod(0o755)
    finish = f"mkdir -p {shlex.quote(str(workdir / 'model'))}" if end == "model" else f"exit {code}"
    calls = programs("srun", f'SLURM_PROCID=5 "${{@:2}}"\n{finish}')
    programs("scontrol", 'if [[ "$1" == show ]]; then printf "node7\\nnode8\\n"; fi')
    train = [*TRAIN, "--workdir", str(workdir)]
    text = dry("slurm", "--nodes", "2", "--gpus", "4", "--python", str(python), train=train)
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


def test_slurm_submits_once(programs, tmp_path):
    programs("squeue", "if [[ -e queue ]]; then cat queue; fi")
    calls = programs("sbatch", 'cat > script; echo "12 RUNNING" > queue; echo "12;cluster"')
    first, second = launch("slurm"), launch("slurm")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "job 12" in first.stderr and "there already as job 12 RUNNING" in second.stderr
    assert calls.read_text().count("sbatch") == 1
    assert (tmp_path / "script").read_text() == dry("slurm")


# TPUs


@pytest.mark.parametrize("direct", [[], ["--direct"]], ids=["queued", "direct"])
def test_tpu_dry_run_has_what_a_run_needs(direct):
    lines = dry("tpu", *TPU, *direct, "--spot", "--project", "mine").splitlines()
    calls = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert all(call[:3] == ["gcloud", "compute", "tpus"] for call in calls)
    assert all({"--zone=us-west4-a", "--project=mine"} <= set(call) for call in calls)
    assert [call[4] for call in calls] == ["describe", "create", "describe", "scp", "ssh", "ssh", "delete"]
    assert {call[3] for call in (calls[0], calls[1], calls[-1])} == {"tpu-vm" if direct else "queued-resources"}
    create, copy, start = calls[1], calls[3], calls[4]
    assert {NAME, "--accelerator-type=v5litepod-16", "--spot"} <= set(create)
    assert f"--labels=app=rococo,config-hash={HASH[:12]}" in create
    assert ("--version=" if direct else "--runtime-version=") + "v2-alpha-tpuv5-lite" in create
    assert "--worker=all" in copy and "--worker=all" in start and "--worker=0" in calls[5]
    assert "up to 20 times" in "\n".join(lines)
    # The host's shell takes the command apart once more.
    words = shlex.split(next(word for word in start if word.startswith("--command=")).removeprefix("--command="))
    assert words[words.index("start") + 1 :][:2] == ["gs://kept", "600"]
    expected = ["train", "--config", CONFIG, "--workdir", f"/mnt/rococo/runs/{NAME}", *AWKWARD]
    assert words[words.index("train") :] == expected
    assert "ROCOCO_COORDINATOR=auto" in (LAUNCH / "tpu_host.sh").read_text()


@pytest.mark.parametrize(
    ("disk", "overrides", "order"),
    [
        ("gs://kept", ["data.images=/mnt/rococo/shards"], "shards"),
        ("gs://kept", ["data.images=/mnt/rococo/shards", "data.order=shuffled"], "shuffled"),
        ("gs://kept", ["data.images=scenes:64"], None),
        ("HOST:/share", ["data.images=/mnt/rococo/shards"], None),
    ],
)
def test_shards_behind_gcsfuse_are_read_from_front_to_back(disk, overrides, order):
    overrides = [f"--config.{each}" for each in overrides]
    train = ["train", "--config", CONFIG, *overrides]
    remote = dry("tpu", *TPU, "--disk", disk, "--direct", train=train).splitlines()
    remote = next(word for line in remote if "start" in line for word in shlex.split(line) if "--command=" in word)
    given = [word for word in shlex.split(remote) if word.startswith("--config.data.order=")]
    assert given == ([f"--config.data.order={order}"] if order else [])
    # Another order is another run.
    assert (f"-{config_hash(*overrides)[:8]}" in remote) == (order != "shards")


# A cloud in a few lines: the slice's state lies in a file, and `follow` ends as the next line of `ends` says.
CLOUD = """
case "$*" in
    *" describe "*) [[ -e state ]] || { echo "ERROR: NOT_FOUND: no such resource" >&2; exit 1; }; cat state ;;
    *" create "*) echo ACTIVE > state ;;
    *" delete "*) rm state ;;
    *" scp "*) stat --format=%y *.tar.gz >> packed ;;
    *" follow "*)
        read -r code state < ends; sed -i 1d ends
        if [[ -n "$state" ]]; then echo "$state" > state; fi
        exit "$code" ;;
esac
"""


@pytest.mark.parametrize(
    ("ends", "made", "code", "own"),
    [
        (["0"], 1, 0, []),
        # Taken away; the connection breaks, or a last word comes through.
        (["255 SUSPENDED", "1 PREEMPTED", "0"], 3, 0, []),
        # Stopped by maintenance: the slice is still there.
        (["75", "0"], 1, 0, []),
        (["1"], 1, 1, []),
        (["75", "75", "75"], 1, 75, []),
        # There before, and kept.
        (["0"], 0, 0, ["--keep"]),
    ],
)
def test_tpu_makes_follows_restarts_and_gives_back(programs, tmp_path, monkeypatch, ends, made, code, own):
    calls = programs("gcloud", CLOUD)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ends").write_text("\n".join(ends) + "\n")
    if not made:
        (tmp_path / "state").write_text("ACTIVE\n")
    done = launch("tpu", *TPU, "--poll", "0", "--restarts", "2", *own)
    assert done.returncode == code, done.stderr
    counts = [calls.read_text().count(f" {word} ") for word in ("create", "follow", "start")]
    assert counts == [made, len(ends), len(ends)]
    # Every start is of the checkout as it was packed at first.
    packed = (tmp_path / "packed").read_text().splitlines()
    assert len(packed) == len(ends) and len(set(packed)) == 1
    assert (tmp_path / "state").exists() == bool(own)


# What runs on the hosts


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_run_that_sigterm_ended_well_is_to_be_started_again(tmp_path, shell):
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(int(sys.argv[1])))\n"
    # In short sleeps: a signal that comes between the print and the sleep does not wake it.
    script += "print('ready', flush=True)\nwhile sys.argv[2]: time.sleep(0.05)\nsys.exit(int(sys.argv[1]))"
    # 143 is 128 + SIGTERM: how a shell names the end of a command that has no handler.
    cases, started = ((0, "yes", 75), (143, "yes", 75), (5, "yes", 5), (0, "", 0), (5, "", 5)), []
    for code, signalled, expected in cases:
        noted = tmp_path / f"{code}{signalled}"
        command = [shell, str(LAUNCH / "until_stopped.sh"), sys.executable, "-c", script, str(code), signalled]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "EXIT_CODE_FILE": str(noted)})
        started.append((running, noted, signalled, expected))
    # Side by side, as the script may look for the end of its child once a second.
    for running, _, signalled, _ in started:
        assert running.stdout.readline() == b"ready\n"
        if signalled:
            running.terminate()
    for running, noted, _, expected in started:
        running.communicate(timeout=60)
        assert (running.returncode, noted.read_text()) == (expected, f"{expected}\n")


def test_tpu_host_script_starts_once_follows_and_tells_a_stop_from_an_end(tmp_path):
    """Run the script on this machine, without installing and mounting."""
    rococo, text = tmp_path / ".venv" / "bin" / "rococo", (LAUNCH / "tpu_host.sh").read_text()
    for part in ('        mount_disk "$2"\n', "        install_rococo\n"):
        assert part in text
        text = text.replace(part, "")
    scripts = {tmp_path / "launch" / "tpu_host.sh": text}
    scripts[tmp_path / "launch" / "until_stopped.sh"] = (LAUNCH / "until_stopped.sh").read_text()
    scripts[rococo] = '#!/bin/bash\ntrap "exit 0" TERM\necho "$ROCOCO_COORDINATOR $1"\n'
    scripts[rococo] += "for _ in {1..600}; do sleep 0.1; done"
    for path, lines in scripts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines)
    rococo.chmod(0o755)

    def host(*words: str) -> subprocess.CompletedProcess:
        command = ["bash", tmp_path / "launch" / "tpu_host.sh", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert host("start", "gs://kept", "60", "train").returncode == 0
    assert "runs already" in host("start", "gs://kept", "60", "train").stdout
    limit = time.monotonic() + 60
    while "auto train" not in (tmp_path / "run.log").read_text() and time.monotonic() < limit:
        time.sleep(0.1)
    assert host("stop").returncode == 0
    followed = host("follow", str(tmp_path / "work" / "model"))
    assert (followed.returncode, followed.stdout) == (75, "auto train\n")


# Bad input


@pytest.mark.parametrize(
    ("name", "own", "train", "said"),
    [
        ("slurm", [], [], "command after --: found nothing; wanted -- train"),
        ("slurm", [], ["evaluate"], "found 'evaluate'"),
        ("local", [], ["train", "--config", "configs/none.py"], "configs/none.py: config: found nothing there"),
        ("slurm", [], ["train", "--config", CONFIG, "steps"], "override: found 'steps'; wanted --config.key=value"),
        ("slurm", [], ["sweep", "--config", CONFIG, "--collect"], "sweep: found --collect; wanted a sweep that trains"),
        ("slurm", ["--time", "soon"], TRAIN, "--time: found 'soon'"),
        ("tpu", [*TPU, "--disk", "claim:x"], TRAIN, "--disk: found 'claim:x'; wanted gs://BUCKET or HOST:/SHARE"),
        ("tpu", TPU, [*TRAIN, "--workdir", "/home/me/run"], "--workdir: found '/home/me/run'; wanted a folder below"),
    ],
)
def test_bad_input_is_one_line(name, own, train, said):
    done = launch(name, *own, "--dry-run", train=train)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert said in done.stderr


def test_a_failing_program_is_quoted_and_a_missing_one_named(programs, tmp_path, monkeypatch):
    programs("squeue", 'echo "error: no such cluster" >&2; exit 1')
    for said in ("found error: no such cluster", "squeue: program: found nothing of that name on the PATH"):
        done = launch("slurm")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert said in done.stderr
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
