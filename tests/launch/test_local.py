"""`launch/local.py`: its dry run is what a shell can run; the processes of one machine start and end together."""

import json
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.support.launchers import AWKWARD, CONFIG, LAUNCH, NAME, config_hash, dry


def test_hash_is_of_the_config_and_of_what_the_overrides_come_to():
    assert config_hash("--config.steps=3", "--config.seed=1") == config_hash("--config.seed=1", "--config.steps=3")
    assert config_hash("--config.steps=9", "--config.steps=3") == config_hash("--config.steps=3")
    assert len({config_hash(), config_hash("--config.steps=3"), config_hash("--config.steps=4")}) == 3
    # Neither key nor value can run into its neighbour.
    assert config_hash("--config.a=1b=2") != config_hash("--config.a=1", "--config.b=2")


def test_a_dry_run_is_what_a_shell_can_run():
    lines = dry("local", "--processes", "3", "--devices", "2", "--timeout", "60", "--port", "4321").splitlines()
    # The shell itself takes the lines apart: variables, then words.
    show = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]))"
    program, stand_in = (shlex.join([sys.executable, *words]) for words in (["-m", "rococo_jax"], ["-c", show]))
    assert [line.count(program) for line in lines] == [1, 1, 1]
    shown = subprocess.check_output(["sh", "-c", "\n".join(lines).replace(program, stand_in)], text=True)
    for number, (environment, words) in enumerate(map(json.loads, shown.splitlines())):
        expected = {"ROCOCO_COORDINATOR": "localhost:4321", "ROCOCO_PROCESSES": "3", "ROCOCO_PROCESS": str(number)}
        assert environment.items() >= (expected | {"ROCOCO_TIMEOUT": "60", "JAX_PLATFORMS": "cpu"}).items()
        assert environment["XLA_FLAGS"].count("device_count=") == 1
        assert "--xla_force_host_platform_device_count=2" in environment["XLA_FLAGS"]
        assert words[1:] == ["train", "--config", CONFIG, "--workdir", f"runs/{NAME}", *AWKWARD]


@pytest.fixture
def local(tmp_path):
    """Starts processes in which `python -m rococo_jax WORDS` runs the given lines instead of the package."""

    def start(lines: str, *own: str, train: tuple[str, ...] = ("do",)) -> subprocess.Popen:
        (tmp_path / "rococo_jax").mkdir()
        # Without it the package found by PYTHONPATH would come first.
        (tmp_path / "rococo_jax" / "__init__.py").touch()
        start = "import os, signal, sys, time\nme = int(os.environ['ROCOCO_PROCESS'])\n"
        (tmp_path / "rococo_jax" / "__main__.py").write_text(start + lines)
        command = [sys.executable, str(LAUNCH / "local.py"), *own, "--", *train]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def test_processes_get_their_numbers_and_prefix_their_lines(local):
    lines = "print('out', me, os.environ['ROCOCO_PROCESSES'], *sys.argv[1:])\nprint('err', me, file=sys.stderr)"
    running = local(lines, "--processes", "3", train=("show", "a b"))
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert sorted(out.splitlines()) == [f"[{number}] out {number} 3 show a b" for number in range(3)]
    assert {f"[{number}] err {number}" for number in range(3)} <= set(err.splitlines())


@pytest.mark.parametrize(
    ("lines", "timeout", "code", "said"),
    [
        ("if me == 1: os.kill(os.getpid(), 9)\ntime.sleep(600)", 1, 128 + signal.SIGKILL,
         "process 1 was killed by SIGKILL; 1 s for processes 0, 2 to stop"),
        ("time.sleep(0.4 * me)\nsys.exit(3 + me)", 100, 3,
         "process 0 ended with exit code 3; 100 s for processes 1, 2 to stop"),
    ],
    ids=["killed", "failed"],
)  # fmt: skip
def test_the_first_that_fails_is_named_and_ends_the_others(local, lines, timeout, code, said):
    before = time.monotonic()
    running = local(lines, "--processes", "3", "--timeout", str(timeout))
    _, err = running.communicate(timeout=120)
    assert running.returncode == code and said in err
    # Those that stop by themselves are left to.
    assert ("killing processes 0, 2, still there after 1 s" in err) == ("killing" in err) == (timeout == 1)
    assert timeout > 1 or 1 <= time.monotonic() - before < 60


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_all(local, which):
    lines = "def stop(*_): print('saved', flush=True); sys.exit(0)\n"
    lines += f"signal.signal({int(which)}, stop)\nprint('ready', flush=True)\ntime.sleep(600)"
    running = local(lines, "--processes", "2", "--timeout", "60")
    assert {running.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
    running.send_signal(which)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"]
