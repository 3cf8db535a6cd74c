"""Outputs that cannot be written, or that would take the place of an input, are refused before any work."""

import errno
import os
import re
import tempfile
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rococo_jax import storage
from rococo_jax.cli.main import build_parser, main
from rococo_jax.encoders import cache
from rococo_jax.errors import DiskFull, InputError
from rococo_jax.runtime import cache_folder
from rococo_jax.training.state import TrainingCheckpoints, TrainState
from tests.support.faults import Table, World, no_file_above

OUTPUTS = Table()
FOLDERS = ("evaluate", "convert", "export", "mix", "corrupt", "pack", "train", "join")
FILES = (
    "score", "embed", "influence", "alter", "verify", "attention", "report",
)  # fmt: skip


def _command(world: World, name: str, out: str) -> list:
    """A whole command that writes to `out`."""
    images = ["--images", world / "images"]
    own = {
        "convert": ["convert", world / "hf", world / out],
        "export": ["export", world / "legacy", world / out],
        "verify": ["verify", "--annotations", world / "annotations", "--out", world / out],
        "attention": ["attention", world / "model", *images, "--out", world / out],
        "report": ["report", world / "truth", "--out", world / out],
        "join": ["join", world / "model", world / "model", world / out, *images, "--captions", world / "captions.json"],
    }
    if name in own:
        return own[name]
    return world.train(workdir=out) if name == "train" else getattr(world, name)(out=out)


def _rows(name: str) -> None:
    is_file = name in FILES

    @OUTPUTS.row(f"{name}: a path component of --out is a file", says="file system: found Not a directory")
    def _(world):
        return _command(world, name, "captions.json/below/o.html")

    @OUTPUTS.row(
        f"{name}: --out is a {'folder' if is_file else 'file'}",
        says="file system: found " + ("Is a directory" if is_file else "Not a directory"),
    )
    def _(world):
        (world / "file.html").write_text("")
        (world / "folder.html").mkdir()
        return _command(world, name, "folder.html" if is_file else "file.html")


for _name in (*FOLDERS, *FILES):
    _rows(_name)


@OUTPUTS.row("alter-captions --out is the captions file itself", says="captions.json: out: found what captions names")
def _(world):
    return world.alter(out="captions.json")


@OUTPUTS.row("score --out is the similarity file", says="s.npy: out: found what similarities names")
def _(world):
    return world.score(out="s.npy")


@OUTPUTS.row("score --out and --per-query are one file", says="out and per_query")
def _(world):
    return world.score("--per-query", world / "score.json")


@OUTPUTS.row("mix-images --out is the folder of images", says="images: out")
def _(world):
    return world.mix(out="images")


@OUTPUTS.row("a link to the input is the input", says="link.json: out")
def _(world):
    (world / "link.json").symlink_to(world / "captions.json")
    return world.alter(out="link.json")


@OUTPUTS.each
def test_outputs(fault, world, capsys):
    before = sorted(world.root.rglob("*"))
    fault.check(world, capsys)
    after = [path for path in sorted(world.root.rglob("*")) if path not in before]
    assert {path.name for path in after} <= {"file.html", "folder.html", "link.json"}


COMMANDS = build_parser()._subparsers._group_actions[0].choices
# What commands write, by its place among their options; `benchmarks --items` is the name of one.
WRITTEN = [
    (command, option.dest)
    for command, parser in COMMANDS.items()
    for option in parser._actions
    if option.dest in ("out", "workdir", "per_query")
    or (command, option.dest) in (("fetch", "data"), ("alter-captions", "items"))
]  # fmt: skip


@pytest.mark.parametrize(("command", "written"), WRITTEN, ids=map(" ".join, WRITTEN))
def test_no_command_writes_to_a_url(command, written, tmp_path, monkeypatch, refusal):
    """Refused while the command line is read, and no folder `gs:` is made."""
    monkeypatch.chdir(tmp_path)
    words = [command]
    for option in COMMANDS[command]._actions:
        if option.required or option.dest == written:
            value = "gs://bucket/new/o.html" if option.dest == written else (option.choices or "1")[0]
            words += [*option.option_strings[:1], value]
    assert refusal(*words).startswith("rococo: gs://bucket/new/o.html: output: found a URL; wanted a folder of this")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [
    lambda url: storage.write_json(url, 1), lambda url: storage.write_text(Path(url), "a"), cache.EmbeddingCache,
    lambda url: storage.refuse_existing_folder(url), lambda url: storage.hold(url).__enter__(),
])  # fmt: skip
def test_nothing_is_written_to_a_url_from_python(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("gs://bucket/x", Path("gs://bucket/x")):
        with pytest.raises(InputError, match="found a URL; wanted a folder of this machine"):
            write(url)
    assert not list(tmp_path.iterdir())


def test_the_cache_folder_is_no_url(monkeypatch):
    monkeypatch.setenv("ROCOCO_CACHE", "gs://bucket/cache")
    with pytest.raises(InputError, match="gs://bucket/cache: ROCOCO_CACHE: found a URL"):
        cache_folder()


@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
def test_a_folder_that_refuses_every_file_is_refused_at_once(name, world, monkeypatch, refusal):
    """As a folder under `chattr +i`, or on a file system that is read-only or full."""

    def refused(dir=None, **_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), f"{dir}/tmp123")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    (line,) = refusal(*_command(world, name, "new/o.html")).splitlines()
    assert line.startswith(f"rococo: {world.root}: file system: found Operation not permitted")
    assert not (world / "new").exists()


def test_a_disk_that_fills_while_pairs_are_packed_is_reported_in_one_line(world, refusal):
    with no_file_above(4096):
        assert "file system: found File too large; wanted room for the output" in refusal(*world.pack())
    assert not list((world / "packed").glob("*.tar"))


@pytest.mark.thorough
def test_training_without_room_for_a_checkpoint_stops_in_one_line_and_goes_on_later(world, monkeypatch, capsys):
    free = iter([10**9, 10])
    with monkeypatch.context() as patched:
        patched.setattr(storage.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=next(free)))
        world.run(world.train(), code=2)
    *_, line = capsys.readouterr().err.splitlines()
    assert re.search(
        r"checkpoints/2: disk: found 10 bytes free .* wanted [\d,]+ bytes; the checkpoint of step 1 ", line
    )
    assert [path.name for path in (world / "workdir/checkpoints").iterdir()] == ["1"]
    world.run(world.train())
    assert (world / "workdir/model").is_dir()


def test_a_checkpoint_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path, caplog, monkeypatch):
    """A real error of the file system, in the thread that writes."""
    (tmp_path / "run/7.orbax-checkpoint-tmp/state").mkdir(parents=True)
    noise = jax.random.normal(jax.random.key(0), (100, 1000))
    state = TrainState(jnp.zeros((), jnp.int32), {"weights": noise}, {}, {})
    checkpoints = TrainingCheckpoints(tmp_path / "run", 2, {})
    assert not list((tmp_path / "run").iterdir()), "what a killed run left"
    with no_file_above(100_000), pytest.raises(InputError) as refused:
        checkpoints.save(1, state, {})
        checkpoints.wait()
    assert refused.value.source.startswith(f"{tmp_path}/run/1.")
    assert (refused.value.field, refused.value.found) == ("file system", "File too large")
    assert refused.value.wanted == "room for the output; no checkpoint was written before"
    assert not list((tmp_path / "run").iterdir()) and not caplog.records
    checkpoints.save(2, state, {})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=10))
    with pytest.raises(DiskFull, match=r"3: disk: .* wanted 1,400,004 bytes; the checkpoint of step 2 is good"):
        checkpoints.save(3, state, {})
    checkpoints.close()
    assert TrainingCheckpoints(tmp_path / "run", 2, {}).latest() == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, None])
def test_a_cache_that_cannot_be_written_is_left_out(number, world, monkeypatch, capsys):
    """The embedding cache on a full disk, or on a read-only file system."""

    def refused(path):
        raise OSError(number, "refused") if number else OSError("19168 requested and 2016 written")

    monkeypatch.setattr(cache, "atomic_write", refused)
    assert main([str(word) for word in world.evaluate()]) == 0
    assert capsys.readouterr().err.count("embeddings cannot be kept") == 1
    world.assert_undisturbed()
