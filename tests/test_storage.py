"""Locks on folders and files that a command writes."""

import re
import subprocess
import sys
import threading

import pytest

from rococo_jax.errors import InputError
from rococo_jax.storage import hold
from tests.support.paths import CHECKOUT

HOLD = "import sys; from rococo_jax.storage import hold\nwith hold(sys.argv[1]): print('held', flush=True); input()"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_another_process_holds_is_refused_until_it_ends_however_it_ends(kind, tmp_path):
    path = tmp_path / "out"
    if kind == "folder":
        path.mkdir()
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=pipe, stdout=pipe, text=True, cwd=CHECKOUT)
    assert other.stdout.readline() == "held\n"
    in_use = rf"out: lock: found in use by process {other.pid} of .+; wanted one command"
    with pytest.raises(InputError, match=in_use), hold(path):
        raise AssertionError("two at a time")
    other.kill()
    other.communicate()
    with hold(path), pytest.raises(InputError, match="in use by this process"), hold(path):
        raise AssertionError("two at a time")
    assert not re.search("lock", " ".join(found.name for found in tmp_path.rglob("*")))
    with hold(path):
        pass


def test_a_holder_that_waits_begins_when_the_other_ends(tmp_path):
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=pipe, stdout=pipe, text=True, cwd=CHECKOUT)
    assert other.stdout.readline() == "held\n"
    order = []
    ending = threading.Timer(0.3, lambda: (order.append("ends"), other.communicate("\n")))
    ending.start()
    with hold(tmp_path, wait=True):
        order.append("held")
    ending.join()
    assert order == ["ends", "held"] and not list(tmp_path.iterdir())


def test_the_next_holder_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
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
