"""Launchers: dry runs contain what a real run needs; processes of one machine start and end together."""

import configparser
import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import CHECKOUT

LAUNCH = CHECKOUT / "launch"
CONFIG = "configs/scenes_tiny.py"
# Blanks, both quotes, a dollar, a variable of Kubernetes, a glob, and letters beyond ASCII.
AWKWARD = ['--config.data.images=it\'s "a" $(HOME) $HOME * \\ b', "--config.data.captions=ä#: {x}", "--config.steps=3"]
TRAIN = ["train", "--config", CONFIG, *AWKWARD]
TPU = "--zone us-west4-a --accelerator v5litepod-16 --runtime v2-alpha-tpuv5-lite --disk gs://kept".split()


def launch(name: str, *own: str, train: list[str] = TRAIN, **more) -> subprocess.CompletedProcess:
    command = [sys.executable, str(LAUNCH / f"{name}.py"), *own, *(["--", *train] if train else [])]
    return subprocess.run(command, **{"capture_output": True, "text": True, "cwd": CHECKOUT, "timeout": 120} | more)


def launch_here(name: str, *own: str, train: list[str] = TRAIN) -> subprocess.CompletedProcess:
    """As `launch`, in this process; for what starts nothing that lives on."""
    words = [*own, *(["--", *train] if train else [])]
    with (
        contextlib.chdir(CHECKOUT),
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        patched.syspath_prepend(str(LAUNCH))
        patched.setattr(sys, "argv", [f"{name}.py", *words])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module("command").run_main(importlib.import_module(name).main)
    return subprocess.CompletedProcess(words, ended.value.code, out.getvalue(), err.getvalue())


def dry(name: str, *own: str, train: list[str] = TRAIN) -> str:
    done = launch_here(name, *own, "--dry-run", train=train)
    assert done.returncode == 0, done.stderr
    return done.stdout


def config_hash(*overrides: str) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(LAUNCH))
        command = importlib.import_module("command")
    return command.read_run_command(["train", "--config", str(CHECKOUT / CONFIG), *overrides]).hash


HASH = config_hash(*AWKWARD)
NAME = f"rococo-scenes-tiny-{HASH[:12]}"


def words_of_train(words: list[str]) -> list[str]:
    return words[words.index("train") :]


def test_hash_is_of_the_config_and_of_what_the_overrides_come_to():
    assert config_hash("--config.steps=3", "--config.seed=1") == config_hash("--config.seed=1", "--config.steps=3")
    assert config_hash("--config.steps=9", "--config.steps=3") == config_hash("--config.steps=3")
    assert len({config_hash(), config_hash("--config.steps=3"), config_hash("--config.steps=4")}) == 3
    # Neither key nor value can run into its neighbour.
    assert config_hash("--config.a=1b=2") != config_hash("--config.a=1", "--config.b=2")


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


# local.py


def test_local_dry_run_is_what_a_shell_can_run():
    lines = dry("local", "--processes", "3", "--devices", "2", "--timeout", "60", "--port", "4321").splitlines()
    assert len(lines) == 3
    for number, line in enumerate(lines):
        # The shell itself takes the line apart: variables, then words.
        show = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]))"
        program = shlex.join([sys.executable, "-m", "rococo_jax"])
        assert program in line
        line = line.replace(program, shlex.join([sys.executable, "-c", show]))
        environment, words = json.loads(subprocess.check_output(["sh", "-c", line], text=True))
        assert environment["ROCOCO_COORDINATOR"] == "localhost:4321"
        assert (environment["ROCOCO_PROCESSES"], environment["ROCOCO_PROCESS"]) == ("3", str(number))
        assert (environment["ROCOCO_TIMEOUT"], environment["JAX_PLATFORMS"]) == ("60", "cpu")
        assert environment["XLA_FLAGS"].count("device_count=") == 1
        assert "--xla_force_host_platform_device_count=2" in environment["XLA_FLAGS"]
        assert words[1:] == ["train", "--config", CONFIG, "--workdir", f"runs/{NAME}", *AWKWARD]


@pytest.fixture
def stand_in(tmp_path):
    """Makes a folder in which `python -m rococo_jax WORDS` runs the given lines instead of the package."""

    def write(lines: str) -> Path:
        (tmp_path / "rococo_jax").mkdir(exist_ok=True)
        # Without it the package found by PYTHONPATH would come first.
        (tmp_path / "rococo_jax" / "__init__.py").touch()
        (tmp_path / "rococo_jax" / "__main__.py").write_text("import os, signal, sys, time\n" + lines)
        return tmp_path

    return write


def test_local_processes_get_their_numbers_and_prefix_their_lines(stand_in):
    folder = stand_in(
        "me = os.environ['ROCOCO_PROCESS']\n"
        "print('out', me, os.environ['ROCOCO_PROCESSES'], *sys.argv[1:])\n"
        "print('err', me, file=sys.stderr)"
    )
    done = launch("local", "--processes", "3", train=["show", "a b"], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{number}] out {number} 3 show a b" for number in range(3)]
    assert {f"[{number}] err {number}" for number in range(3)} <= set(done.stderr.splitlines())


def test_local_names_the_process_that_was_killed_and_ends_the_others(stand_in):
    folder = stand_in("if os.environ['ROCOCO_PROCESS'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(600)")
    before = time.monotonic()
    done = launch("local", "--processes", "3", "--timeout", "1", train=["sleep"], cwd=folder)
    assert done.returncode == 128 + signal.SIGKILL
    assert "process 1 was killed by SIGKILL; 1 s for processes 0, 2 to stop" in done.stderr
    assert "killing processes 0, 2, still there after 1 s" in done.stderr
    assert 1 <= time.monotonic() - before < 60


def test_local_ends_with_the_exit_code_of_the_first_failure(stand_in):
    folder = stand_in("me = int(os.environ['ROCOCO_PROCESS'])\ntime.sleep(0.5 * me)\nsys.exit([3, 4][me])")
    done = launch("local", "--processes", "2", "--timeout", "100", train=["fail"], cwd=folder)
    assert done.returncode == 3
    assert "process 0 ended with exit code 3; 100 s for process 1 to stop" in done.stderr
    assert "killing" not in done.stderr


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_local_passes_signals_on_to_all(stand_in, which):
    folder = stand_in(
        f"def stop(*_): print('saved', flush=True); sys.exit(0)\n"
        f"signal.signal({int(which)}, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    command = [sys.executable, str(LAUNCH / "local.py"), "--processes", "2", "--timeout", "60", "--", "wait"]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert {running.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    running.send_signal(which)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"]


# The clouds and the cluster


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts shell scripts first on the PATH as programs; each appends its words to `calls`."""
    calls = tmp_path / "calls"
    calls.touch()

    def put(name: str, lines: str) -> Path:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "{name} $*" >> {calls}\ncd {tmp_path}\n{lines}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return calls

    return put


def check_by(program: str, path: Path) -> None:
    """Runs a checker that the extra `dev` installs beside this Python."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([shutil.which(program, path=places), path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_shell_scripts_pass_shellcheck():
    scripts = sorted(LAUNCH.glob("*.sh"))
    assert len(scripts) == 2
    for script in scripts:
        check_by("shellcheck", script)


@pytest.mark.parametrize("coordinator", ["first-host", "auto"])
def test_slurm_script_has_what_a_run_needs(tmp_path, coordinator):
    own = ["--nodes", "2", "--gpus", "4", "--time", "1:00:00", "--coordinator", coordinator]
    text = dry("slurm", *own, "--sbatch=--partition=gpu", "--setup", "module load cuda")
    (tmp_path / "job.sh").write_text(text)
    check_by("shellcheck", tmp_path / "job.sh")
    options = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")}
    assert options >= {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=1:00:00"}
    assert options >= {"--requeue", "--signal=TERM@120", "--partition=gpu", f"--job-name={NAME}"}
    assert f"--comment=config-hash={HASH}" in options
    assert "\nmodule load cuda\n" in text
    assert ("ROCOCO_COORDINATOR=auto" in text) == (coordinator == "auto")


@pytest.mark.parametrize("end", ["model", "stopped", "stopped at once", "failed"])
def test_slurm_script_runs_the_tasks_and_requeues_what_was_stopped(tmp_path, programs, end):
    """Runs the batch script with substitutes for SLURM's programs."""
    seen, workdir = tmp_path / "seen.json", tmp_path / "a workdir"
    write = f"import json, os, sys; json.dump([dict(os.environ), sys.argv], open({str(seen)!r}, 'w'))"
    (tmp_path / "python").write_text(f'#!/bin/bash\n{shlex.join([sys.executable, "-c", write])} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    made = f"mkdir -p {shlex.quote(str(workdir / 'model'))}"
    codes = {"model": 0, "stopped": 0, "stopped at once": 128 + signal.SIGTERM, "failed": 7}
    finish = made if end == "model" else f"exit {codes[end]}"
    calls = programs("srun", f'SLURM_PROCID=5 "${{@:2}}"\n{finish}')
    programs("scontrol", 'if [[ "$1" == show ]]; then printf "node7\\nnode8\\n"; fi')
    train = [*TRAIN, "--workdir", str(workdir)]
    text = dry("slurm", "--nodes", "2", "--gpus", "4", "--python", str(tmp_path / "python"), train=train)
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "41234"}
    done = subprocess.run(["bash"], input=text, text=True, env={**os.environ, **job}, capture_output=True)
    assert done.returncode == codes[end], done.stderr
    environment, words = json.loads(seen.read_text())
    # 20000 + 41234 % 20000
    assert environment["ROCOCO_COORDINATOR"] == "node7:21234"
    assert (environment["ROCOCO_PROCESSES"], environment["ROCOCO_PROCESS"]) == ("8", "5")
    assert words[1:3] == ["-m", "rococo_jax"]
    assert words[3:] == ["train", "--config", str(CHECKOUT / CONFIG), "--workdir", str(workdir), *AWKWARD]
    assert ("scontrol requeue 41234" in calls.read_text()) == (end in ("stopped", "stopped at once"))


def test_slurm_submits_once(programs, tmp_path):
    programs("squeue", "if [[ -e queue ]]; then cat queue; fi")
    calls = programs("sbatch", 'cat > script; echo "12 RUNNING" > queue; echo "12;cluster"')
    first, second = launch_here("slurm"), launch_here("slurm")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "job 12" in first.stderr
    assert "there already as job 12 RUNNING" in second.stderr
    assert calls.read_text().count("sbatch") == 1
    assert (tmp_path / "script").read_text() == dry("slurm")


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
        started.append((running, noted, expected))
    # Side by side, as the script may look for the end of its child once a second.
    for (running, *_), (_, signalled, _) in zip(started, cases, strict=True):
        assert running.stdout.readline() == b"ready\n"
        if signalled:
            running.terminate()
    for running, noted, expected in started:
        running.communicate(timeout=60)
        assert (running.returncode, noted.read_text()) == (expected, f"{expected}\n")


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
    remote = next(word for word in start if word.startswith("--command=")).removeprefix("--command=")
    words = shlex.split(remote)
    assert words[words.index("start") + 1 :][:2] == ["gs://kept", "600"]
    assert words_of_train(words) == ["train", "--config", CONFIG, "--workdir", f"/mnt/rococo/runs/{NAME}", *AWKWARD]
    assert "ROCOCO_COORDINATOR=auto" in (LAUNCH / "tpu_host.sh").read_text()


# A cloud in a few lines: the slice's state lies in a file, and `follow` ends as the next line of `ends` says.
CLOUD = """
case "$*" in
    *" describe "*) [[ -e state ]] || { echo "ERROR: NOT_FOUND: no such resource" >&2; exit 1; }; cat state ;;
    *" create "*) echo ACTIVE > state ;;
    *" delete "*) rm state ;;
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
    done = launch_here("tpu", *TPU, "--poll", "0", "--restarts", "2", *own)
    assert done.returncode == code, done.stderr
    counts = [calls.read_text().count(f" {word} ") for word in ("create", "follow", "start")]
    assert counts == [made, len(ends), len(ends)]
    assert (tmp_path / "state").exists() == bool(own)


def test_tpu_host_script_starts_once_follows_and_tells_a_stop_from_an_end(tmp_path):
    """Runs the script on this machine, without installing and mounting."""
    (tmp_path / "launch").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    text = (LAUNCH / "tpu_host.sh").read_text()
    for part in ('        mount_disk "$2"\n', "        install_rococo\n"):
        assert part in text
        text = text.replace(part, "")
    script = tmp_path / "launch" / "tpu_host.sh"
    script.write_text(text)
    (tmp_path / "launch" / "until_stopped.sh").write_text((LAUNCH / "until_stopped.sh").read_text())
    rococo = tmp_path / ".venv" / "bin" / "rococo"
    rococo.write_text(
        '#!/bin/bash\ntrap "exit 0" TERM\necho "$ROCOCO_COORDINATOR $1"\nfor _ in {1..600}; do sleep 0.1; done'
    )
    rococo.chmod(0o755)

    def host(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["bash", script, *words], capture_output=True, text=True, timeout=60)

    assert host("start", "gs://kept", "60", "train").returncode == 0
    assert "runs already" in host("start", "gs://kept", "60", "train").stdout
    limit = time.monotonic() + 60
    while "auto train" not in (tmp_path / "run.log").read_text() and time.monotonic() < limit:
        time.sleep(0.1)
    assert host("stop").returncode == 0
    followed = host("follow", str(tmp_path / "work" / "model"))
    assert (followed.returncode, followed.stdout) == (75, "auto train\n")


# The image


def test_dockerfile_passes_hadolint_and_copies_what_is_there():
    check_by("hadolint", LAUNCH / "Dockerfile")
    lines = (LAUNCH / "Dockerfile").read_text().splitlines()
    ignored = (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from=" not in line]
    for source in {source for sources in copied for source in sources}:
        assert (CHECKOUT / source).exists(), source
        assert any(f"!{path}" in ignored for path in (source, source.split("/")[0])), source
    assert all("--constraint launch/constraints.txt" in line for line in lines if "pip install" in line)
    targets = {line.split()[-1] for line in lines if line.startswith("FROM ")}
    assert {"cuda", "tpu"} <= targets
    # The last user before the targets is no root.
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]


def test_constraints_pin_what_the_image_installs():
    pins = dict(line.split("==") for line in (LAUNCH / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    options = configparser.ConfigParser()
    options.read(CHECKOUT / "setup.cfg")
    extras = options["options.extras_require"]
    for line in (options["options"]["install_requires"] + extras["cuda"] + extras["tpu"]).split("\n"):
        if line.strip():
            required = Requirement(line)
            assert pins[canonicalize_name(required.name)] in required.specifier, line
    # What JAX's own extras ask for: every package of them, in a version that they take.
    for extra in ("cuda12", "tpu"):
        asked = [Requirement(text) for text in importlib.metadata.requires("jax")]
        asked = [each for each in asked if each.marker and each.marker.evaluate({"extra": extra})]
        for required in asked:
            if pins["jax"] == importlib.metadata.version("jax"):
                assert pins[canonicalize_name(required.name)] in required.specifier, required
    assert {"nvidia-nccl-cu12", "nvidia-cudnn-cu12", "libtpu"} <= pins.keys()
    assert "pip install --quiet --constraint launch/constraints.txt" in (LAUNCH / "tpu_host.sh").read_text()


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
    done = launch_here(name, *own, "--dry-run", train=train)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_failing_program_is_quoted_and_a_missing_one_named(programs, tmp_path, monkeypatch):
    programs("squeue", 'echo "error: no such cluster" >&2; exit 1')
    done = launch_here("slurm")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "found error: no such cluster" in done.stderr
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = launch_here("slurm")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "squeue: program: found nothing of that name on the PATH" in done.stderr


# Training


@pytest.mark.slow
@pytest.mark.thorough
def test_launched_processes_train_as_one_with_eight_devices(tmp_path):
    overrides = (
        "data.images=scenes:64", "steps=3", "batch_size=16", "log.every=1", "log.tensorboard=False",
        "checkpoint.every=3", "data.workers=0", "losses.sc.weight=1", "losses.vc.weight=1",
        "losses.vc.partner_group=2",
    )  # fmt: skip
    curves = []
    for processes, devices in ((4, 2), (1, 8)):
        workdir = tmp_path / str(processes)
        train = ["train", "--config", CONFIG, "--workdir", str(workdir)]
        train += [f"--config.{each}" for each in overrides]
        own = ["--processes", str(processes), "--devices", str(devices), "--timeout", "300"]
        done = launch("local", *own, train=train, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "8 cpu device(s)" in done.stderr
        curves.append([json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").read_text().splitlines()])
    assert len(curves[0]) == 3
    # The reductions go through another library between processes, in another order.
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-4)
