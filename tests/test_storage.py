"""Locks on folders and files that a command writes."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rococo_jax import locks, storage
from rococo_jax.data import remote
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.demo import benchmark
from rococo_jax.errors import DiskFull, as_input_error, is_disk_full
from rococo_jax.locks import hold
from rococo_jax.storage import atomic_directory, atomic_write
from tests.support.faults import no_file_above
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused

HOLD = "import sys; from rococo_jax.locks import hold\nwith hold(sys.argv[1]): print('held', flush=True); input()"


def held_elsewhere(path: Path) -> subprocess.Popen:
    """Another process that holds a path until a line comes."""
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=pipe, stdout=pipe, text=True, cwd=CHECKOUT)
    assert other.stdout.readline() == "held\n"
    return other


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_locked_output_is_refused_until_the_other_process_ends_or_is_killed(kind, tmp_path):
    path = tmp_path / "out"
    if kind == "folder":
        path.mkdir()
    other = held_elsewhere(path)
    refused(rf"out: lock: found in use by process {other.pid} of .+; wanted one command", hold(path).__enter__)
    other.kill()
    other.communicate()
    with hold(path):
        refused("in use by this process", hold(path).__enter__)
    assert not re.search("lock", " ".join(found.name for found in tmp_path.rglob("*")))
    with hold(path):
        pass


def test_a_waiting_process_gets_the_lock_when_the_other_process_ends(tmp_path, capsys):
    other, order = held_elsewhere(tmp_path), []
    ending = threading.Timer(0.3, lambda: (order.append("ends"), other.communicate("\n")))
    ending.start()
    with hold(tmp_path, wait=True):
        order.append("held")
    ending.join()
    assert order == ["ends", "held"] and not list(tmp_path.iterdir())
    assert f"{tmp_path}: waiting for process {other.pid} of " in capsys.readouterr().err


@pytest.mark.parametrize("needs", ["scenes", "a benchmark", "a copied model"])
def test_what_two_threads_need_at_once_is_made_by_one_of_them(needs, tmp_path, monkeypatch):
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path))
    pytest.importorskip("fsspec").filesystem("memory").pipe("/models/one/model.json", b"{}")
    monkeypatch.setattr(remote, "_version", lambda info: ("1",))
    both_make, make, makers = threading.Barrier(2), storage.atomic_directory, []

    def make_together(path):
        makers.append(path)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_make.wait(0.5)
        return make(path)

    monkeypatch.setattr(locks, "atomic_directory", make_together)
    need = {
        "scenes": lambda: open_pairs("scenes:3").folder,
        "a benchmark": lambda: benchmark.draw_benchmark(tmp_path, scenes=2),
        "a copied model": lambda: remote.local_copy("memory://models/one", tmp_path),
    }[needs]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: need(), range(2))
    assert len(makers) == 1 and first == second


def test_a_waiting_thread_gets_the_lock_when_the_other_thread_ends(tmp_path, monkeypatch):
    order, held = [], threading.Event()

    def first():
        with hold(tmp_path, wait=True):
            held.set()
            threading.Event().wait(0.3)
            order.append("first ends")

    thread = threading.Thread(target=first)
    thread.start()
    assert held.wait(5)
    refused("in use by this process", hold(tmp_path).__enter__)
    with hold(tmp_path, wait=True):
        order.append("second begins")
        # Waiting for itself, a thread would never end.
        with monkeypatch.context() as patch:
            patch.setattr(locks._locks_changed, "wait", lambda: pytest.fail("the thread waits for itself"))
            refused("in use by this process", hold(tmp_path, wait=True).__enter__)
    thread.join()
    assert order == ["first ends", "second begins"] and not list(tmp_path.iterdir())


def test_the_next_lock_removes_temporary_files_of_a_killed_process_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    (run / ".model.0123abcd.part/params").mkdir(parents=True)
    (run / "other").mkdir()
    kept = [run / ".hidden.part", run / ".model.json", run / "a.0123abcd.part", run / "other/.out.0123abcd.part"]
    for path in (*kept, run / ".log.89abcdef.part", tmp_path / ".run.89abcdef.part"):
        path.write_text("")
    with hold(run):
        assert set(run.rglob("*")) | set(tmp_path.glob(".*")) == {*kept, run / "other", run / ".lock"}
    with hold(run, beside=True):  # for a command that writes the whole folder
        assert not kept[-1].exists() and all(path.exists() for path in kept[:-1])


@pytest.mark.parametrize("name", ["run.json", "run.v2", "run.0123abcd.part", "run.1"])
@pytest.mark.parametrize("write", [atomic_write, atomic_directory])
def test_a_lock_keeps_the_temporary_files_of_another_running_command(write, name, tmp_path):
    (tmp_path / "run").mkdir()
    with write(tmp_path / name) as temporary:
        (temporary if write is atomic_write else temporary / "file").write_text("text")
        for beside in (False, True):
            with hold(tmp_path / "run", beside=beside):
                pass
    assert (tmp_path / name).exists()
    # One that writes inside of the folder has a lock of its own.
    inside = tmp_path / "run" / "other"
    inside.mkdir()
    for target, held in ((inside / name, inside), (tmp_path / "run" / name, tmp_path / "run" / name)):
        with hold(held), write(target) as temporary:
            (temporary if write is atomic_write else temporary / "file").write_text("text")
            with hold(tmp_path / "run", beside=True):
                pass
        assert target.exists()


def test_writing_a_folder_removes_old_temporary_folders_but_not_those_of_a_running_writer(tmp_path):
    left, running = (tmp_path / f".a.{number}.part" for number in ("0123abcd", "89abcdef"))
    other = tmp_path / ".a.v2.0123abcd.part"
    for folder in (left, running, other):
        (folder / "params").mkdir(parents=True)
        (folder / "params" / "0").touch()
    for path in (left / "params/0", left / "params", left, running, running / "params", other / "params/0", other):
        os.utime(path, (1, 1))
    with atomic_directory(tmp_path / "a"):
        assert not left.exists() and running.exists() and other.exists()


def test_the_temporary_file_of_a_killed_process_is_removed_at_once_and_no_other(tmp_path):
    code = "import sys, time; from rococo_jax.storage import atomic_write\nwith atomic_write(sys.argv[1]) as temporary:"
    code += "\n    temporary.write_text('half'); print(temporary, flush=True); time.sleep(100)"
    command = [sys.executable, "-c", code, str(tmp_path / "a.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        temporary = Path(writer.stdout.readline().strip())
        # The same number means another process on another machine, in another container or after another boot.
        space = temporary.name.split(".")[-2].split("-")[0]
        elsewhere = temporary.with_name(temporary.name.replace(space, "00000000"))
        elsewhere.touch()
        storage.remove_old([temporary, elsewhere])
        assert storage.target_name(temporary) == "a.json" and temporary.exists()
        writer.kill()
    storage.remove_old([temporary, elsewhere])
    assert [path.name for path in tmp_path.iterdir()] == [elsewhere.name]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_json_with_a_non_finite_number_is_not_written_and_the_old_file_stays(number, tmp_path):
    """`NaN` is no JSON: other programs refuse the whole file."""
    storage.write_json(tmp_path / "a.json", {"ä": [0.5, None]})
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json(tmp_path / "a.json", {"ä": [0.5, {"deep": number}]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "ä": [\n    0.5,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        storage.write_json_lines(tmp_path / "a.jsonl", [1, {"deep": number}])
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_the_temporary_folder_is_removed_even_if_threads_of_a_failed_write_recreate_it(tmp_path, monkeypatch):
    """One thread adds to the folder while it is being removed; another makes it again when it had gone."""
    late, threads, remove = [1, 2], [], shutil.rmtree

    def remove_before_a_thread_writes(path, ignore_errors):
        remove(path, ignore_errors=ignore_errors)
        if late:
            written = path / f"deep/{late.pop()}"
            threads.append(threading.Timer(0.1 if late else 0, written.mkdir, kwargs={"parents": True}))
            threads[-1].start()

    monkeypatch.setattr(storage.shutil, "rmtree", remove_before_a_thread_writes)
    with pytest.raises(KeyError), atomic_directory(tmp_path / "out"):
        raise KeyError
    for thread in threads:
        thread.join()
    assert not list(tmp_path.iterdir()) and len(threads) == 2


def test_waiting_ends_if_a_temporary_folder_cannot_be_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(storage.shutil, "rmtree", lambda path, ignore_errors: None)
    monkeypatch.setattr(storage, "_SECONDS_TO_REMOVE", 0.1)
    with pytest.raises(KeyError), atomic_directory(tmp_path / "out"):
        raise KeyError
    assert list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("write", [storage.atomic_write, storage.atomic_directory])
def test_a_full_disk_is_reported_with_the_path_of_the_output(write, tmp_path):
    """Writing fails without a path, where opening would have one."""
    with pytest.raises(OSError) as raised, write(tmp_path / "output"), Path("/dev/full").open("wb") as file:
        file.write(b"x")
    error = as_input_error(raised.value)
    assert isinstance(error, DiskFull) and error.source == str(tmp_path / "output")
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_recognised_in_errors_of_safetensors(tmp_path):
    with no_file_above(1_000), pytest.raises(Exception, match="os error") as failed:
        save_file({"a": np.zeros(10_000)}, tmp_path / "a.safetensors")
    error = as_input_error(failed.value)
    assert isinstance(error, DiskFull) and is_disk_full(error)
    assert str(error) == "disk: file system: found File too large; wanted room for the output"
