"""Names, signals, other commands, the environment and launchers."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from rococo_jax.cli.main import main
from rococo_jax.encoders.embedding import encoding_versions
from rococo_jax.evaluation.results import make_fingerprint
from rococo_jax.locks import hold
from tests.support.faults import COMMANDS, Fault, each_of, undamaged

LONG = "a" * 300


def _named(name: str, *others: str):
    return lambda world: ["evaluate", f"{name}=model", *others, *world.command("evaluate")[2:]]


def _has_results(world):
    assert (world / "out/results.json").is_file()


@each_of([
    Fault("model named 'aaa...'", undamaged, "", _named(LONG), 0, _has_results),
    Fault("two models, one with a 300-letter name", undamaged, "name: found 300 letters", _named(LONG, "other")),
    Fault("a name of an output file", undamaged, "name: found 'journal.jsonl'", _named("journal.jsonl", "other")),
])  # fmt: skip
def test_names_of_models_are_accepted_or_refused_in_one_line(fault, world, capsys):
    fault.check(world, capsys)


@pytest.fixture
def sigint_as_usual():
    """Shells start background jobs with SIGINT ignored, and Python leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("then", ["raise ImportError('an error while initializing')", "return default_config()"])
def test_an_interruption_ends_with_code_130_even_if_other_code_catches_it(then, sigint_as_usual, tmp_path, capsys):
    (tmp_path / "config.py").write_text(
        "import os, signal, time\nfrom rococo_jax.training.config import default_config\ndef get_config():\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGINT)\n        time.sleep(5)\n"
        f"    except KeyboardInterrupt:\n        {then}\n"
    )
    words = ["train", "--config", str(tmp_path / "config.py"), "--workdir", str(tmp_path / "run"), "--dry-run"]
    assert main(words) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rococo: interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("imported", ["rococo_jax.errors", "rococo_jax.cli.score", "numpy"])
def test_sigint_during_imports_prints_one_line_and_ends_with_code_130(imported, world):
    """Interrupt the imports of the command line, of the command and of its dependencies."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Now:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {imported!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Now())\n"
        "from rococo_jax.__main__ import main; sys.exit(main())"
    )
    words = [sys.executable, "-c", code, *world.command("score")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=world.root)
    assert (done.returncode, done.stderr) == (130, "rococo: interrupted; run the same command again to continue\n")
    assert not (world / "score.json").exists()


@pytest.mark.thorough
def test_workers_end_when_training_is_killed(world):
    words = world.command("train", "--config.data.workers=2", "--config.steps=100000")
    command = [sys.executable, "-m", "rococo_jax", *words]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=world.root, start_new_session=True)
    try:
        while not (world / "workdir/metrics.jsonl").is_file() and process.poll() is None:
            time.sleep(0.2)
        assert len(_members(process.pid)) > 2
    finally:
        process.kill()
        process.wait()
    limit = time.monotonic() + 120
    while (left := _members(process.pid)) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not left


def _members(session: int) -> list[str]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of_session = path.read_text().rpartition(")")[2].split()[:4]
            found += [path.parent.name] if int(of_session) == session and state != "Z" else []
    return found


@pytest.mark.parametrize("name", ["score", "influence", "convert", "mix", "evaluate"])
def test_a_second_command_with_the_same_output_is_refused(name, world, monkeypatch, refusal):
    """Training holds its folder itself."""
    monkeypatch.chdir(world.root)
    out = Path(COMMANDS[name][1])
    with hold(out, beside=True):
        assert f"{out}: lock: found in use by" in refusal(*world.command(name))
    assert not out.exists()


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_jax_with_float64_is_refused(value, monkeypatch, world, refusal):
    monkeypatch.setenv("JAX_ENABLE_X64", value)
    assert "JAX_ENABLE_X64: environment: found" in refusal("inspect", world / "model")


def test_flags_that_change_arithmetic_are_in_fingerprints_and_cache_keys(monkeypatch):
    def now(flags: str) -> tuple:
        monkeypatch.setenv("XLA_FLAGS", flags)
        return make_fingerprint(model={}, data={}, protocol="paper"), encoding_versions()

    usual = now("")
    assert now("--xla_force_host_platform_device_count=2 --xla_dump_to=/x") == usual and "xla_flags" not in usual[1]
    for flags in ("--xla_cpu_enable_fast_math=true", "--xla_allow_excess_precision=false"):
        fingerprint, key = now(f"--xla_force_host_platform_device_count=2 {flags}")
        assert fingerprint["comparable"] != usual[0]["comparable"] and key["xla_flags"] == flags
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert now("")[1] == usual[1] | {"nvidia_tf32_override": "1"}
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    with jax.default_matmul_precision("bfloat16"):  # as by JAX_DEFAULT_MATMUL_PRECISION and `jax.config.update`
        assert now("")[1] == usual[1] | {"jax_default_matmul_precision": "bfloat16"}
    with jax.threefry_partitionable(False):
        assert now("")[1] == usual[1] | {"jax_threefry_partitionable": "False"}
