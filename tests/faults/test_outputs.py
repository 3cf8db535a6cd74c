"""Test that outputs that cannot be written, or would replace an input, are refused before any work."""

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rococo_jax import locks, storage
from rococo_jax.checkpoints import model_directory
from rococo_jax.cli.main import build_parser
from rococo_jax.encoders import cache
from rococo_jax.errors import DiskFull, InputError
from rococo_jax.runtime import cache_folder
from rococo_jax.training.state import TrainingCheckpoints, TrainState
from tests.support.cases import further
from tests.support.faults import COMMANDS, Fault, each_of, no_file_above, undamaged
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused

WRITERS = [name for name in COMMANDS if name not in ("make", "inspect")]


def _places(world):
    (world / "file.html").write_text("")
    (world / "folder.html").mkdir()
    (world / "loop").symlink_to(world / "loop")
    (world / "link.json").symlink_to(world / "captions.json")


def _to(name: str, out: str, what: str, says: str) -> Fault:
    return Fault(f"{name}: --out {what}", undamaged, says, lambda world: world.command(name, out=out))


TO_FILES = [name for name in WRITERS if "." in COMMANDS[name][1]]
NO_FOLDER = "file system: found Not a directory"
OUTPUTS = [
    *(_to(name, "captions.json/below/o.html", "is below a file", NO_FOLDER) for name in WRITERS),
    *(_to(name, "folder.html", "is a folder", "file system: found Is a directory") for name in TO_FILES),
    *(_to(name, "file.html", "is a file", NO_FOLDER) for name in WRITERS if name not in TO_FILES),
    _to("verify", "n" * 300, "has a name too long", "file system: found File name too long"),
    _to("verify", "loop/o.json", "is below a loop of links", "file system: found "),
    _to("alter", "captions.json", "is the captions file itself", "captions.json: out: found what captions names"),
    _to("mix", "images", "is the folder of images", "images: out"),
    _to("alter", "link.json", "is a link to the input", "link.json: out"),
]


@each_of(OUTPUTS)
def test_unusable_outputs_are_refused_without_writing_files(fault, world, capsys):
    _places(world)
    before = {*world.root.rglob("*")}
    fault.check(world, capsys)
    assert {*world.root.rglob("*")} == before


PARSERS = build_parser()._subparsers._group_actions[0].choices
# What commands write, by its place among their options; `benchmarks --items` is the name of one.
WRITTEN = [
    (command, option.dest)
    for command, parser in PARSERS.items()
    for option in parser._actions
    if option.dest in ("out", "workdir", "per_query")
    or (command, option.dest) in (("fetch", "data"), ("alter-captions", "items"))
]  # fmt: skip


# What an output needs beside it.
BESIDE = {("benchmarks", "out"): ["--items", "valse", "--data", "."]}
BESIDE |= {("score", "per_query"): ["--annotation", "danger.json", "--similarities", "S.npy"]}


@pytest.mark.parametrize(("command", "written"), WRITTEN, ids=map(" ".join, WRITTEN))
def test_no_command_writes_to_a_url(command, written, tmp_path, monkeypatch, refusal):
    """Refused while the command line is read, and no folder `gs:` is made."""
    monkeypatch.chdir(tmp_path)
    words = [command]
    for option in PARSERS[command]._actions:
        if option.required or option.dest == written:
            value = "gs://bucket/new/o.html" if option.dest == written else (option.choices or "1")[0]
            words += [*option.option_strings[:1], value]
    words += BESIDE.get((command, written), [])
    assert refusal(*words).startswith("rococo: gs://bucket/new/o.html: output: found a URL; wanted a folder of this")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [
    lambda url: storage.write_json(url, 1), lambda url: storage.write_text(Path(url), "a"), cache.EmbeddingCache,
    storage.refuse_existing_folder, lambda url: locks.hold(url).__enter__(),
])  # fmt: skip
def test_nothing_is_written_to_a_url_from_python(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("gs://bucket/x", Path("gs://bucket/x")):
        refused("found a URL; wanted a folder of this machine", write, url)
    assert not list(tmp_path.iterdir())


def test_a_url_as_cache_folder_is_refused(monkeypatch):
    monkeypatch.setenv("ROCOCO_CACHE", "gs://bucket/cache")
    refused("gs://bucket/cache: ROCOCO_CACHE: found a URL", cache_folder)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"ROCOCO_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/rococo_jax"),
        ({"HOME": "/c"}, "/c/.cache/rococo_jax"),
    ],
)
def test_the_cache_has_a_separate_folder_among_those_of_other_programs(variables, folder, monkeypatch):
    for name in ("ROCOCO_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, variables.get(name, ""))
    assert str(cache_folder()) == folder


def test_nothing_is_cached_for_a_user_without_a_home_folder(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("ROCOCO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder().is_absolute() and not cache_folder().exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_refuses_every_file_is_refused_at_once(name, world, monkeypatch, refusal):
    """Make a folder unwritable, as `chattr +i` or a read-only or full file system does."""

    def nothing(dir=None, **_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), f"{dir}/tmp123")

    monkeypatch.setattr(tempfile, "TemporaryFile", nothing)
    monkeypatch.chdir(world.root)
    (line,) = refusal(*world.command(name, out="new/o.html")).splitlines()
    assert line.startswith(f"rococo: {world.root}: file system: found Operation not permitted")
    assert not (world / "new").exists()


def test_a_disk_that_fills_while_pairs_are_packed_is_reported_in_one_line(world, refusal):
    with no_file_above(4096), contextlib.chdir(world.root):
        assert "file system: found File too large; wanted room for the output" in refusal(*world.command("pack"))
    assert not list((world / "packed").glob("*.tar"))


def test_a_checkpoint_that_cannot_be_written_is_reported_in_one_line_and_leaves_no_files(tmp_path, caplog, monkeypatch):
    """A real error of the file system, in the thread that writes."""
    (tmp_path / "run/7.orbax-checkpoint-tmp/state").mkdir(parents=True)
    noise = jax.random.normal(jax.random.key(0), (100, 1000))
    state = TrainState(jnp.zeros((), jnp.int32), {"weights": noise}, {}, {})
    checkpoints = TrainingCheckpoints(tmp_path / "run", 2, {})
    assert not list((tmp_path / "run").iterdir()), "what a killed run left"
    with no_file_above(100_000), pytest.raises(InputError) as error:
        checkpoints.save(1, state, {})
        checkpoints.wait()
    said = "file system: found File too large; wanted room for the output; no checkpoint was written before"
    assert re.fullmatch(rf"{tmp_path}/run/1\..*: {said}", str(error.value))
    assert not list((tmp_path / "run").iterdir()) and not caplog.records
    checkpoints.save(2, state, {})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=10))
    with pytest.raises(DiskFull, match=r"3: disk: .* wanted 1,400,004 bytes; the checkpoint of step 2 is good"):
        checkpoints.save(3, state, {})
    checkpoints.close()
    assert TrainingCheckpoints(tmp_path / "run", 2, {}).latest() == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["embed", pytest.param("train", marks=pytest.mark.thorough)])
def test_later_reports_of_threads_after_a_failed_read_are_not_printed(command, world):
    """In a process of its own, whose threads and tasks end after the one line of the error."""
    if command == "train":
        world.run("train", "--config.steps=1", out="run")
        shutil.rmtree(world / "run/model")
    for path in (world / {"embed": "model/params", "train": "run/checkpoints/1/state"}[command]).rglob("d/*"):
        os.truncate(path, path.stat().st_size // 3)
    words = world.command(command, *(["--config.steps=2"] if command == "train" else []), out="run")
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(
        [sys.executable, "-m", "rococo_jax", *words], capture_output=True, text=True, cwd=world.root, env=environment
    )
    assert ended.returncode == 2, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(("captions.json: ", "training in"))]
    assert len(lines) == 1, ended.stderr
    assert re.match(r"rococo: .*: (parameters|state): found (?!Encountered).*; wanted ", lines[0])


def test_other_uncaught_errors_of_threads_are_still_printed(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: printed.append(str(unraisable.exc_value)))
    model_directory._hide_late_errors.__wrapped__()
    for said in ("Event loop is closed", "anything else"):
        sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(said), object=None))
    assert printed == ["anything else"]


@pytest.mark.parametrize("number", further([errno.ENOSPC, None], [errno.ENOSPC]))
def test_an_evaluation_continues_without_a_cache_that_cannot_be_written(number, world, monkeypatch, capsys):
    """The embedding cache on a full disk, or on a read-only file system."""

    def nothing(path):
        raise OSError(number, "refused") if number else OSError("19168 requested and 2016 written")

    monkeypatch.setattr(cache, "atomic_write", nothing)
    shutil.rmtree(world / "cache")
    world.run("evaluate")
    assert capsys.readouterr().err.count("cannot cache embeddings") == 1
    world.assert_undisturbed()
