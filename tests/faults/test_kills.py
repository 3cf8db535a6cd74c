"""Every writer stopped at two of its file operations; the same command again gives the bytes of an undisturbed run.

`experiments/kill_every_writer.py` does it with SIGKILL, many times and at random.
"""

import shutil

import pytest

from rococo_jax import locks
from rococo_jax.data import remember
from tests.support.faults import World
from tests.support.kills import Killed, killed_at, watched

WRITERS = ("score", "alter", "mix", "pack", "make")
DEARER = [pytest.param(name, marks=pytest.mark.thorough) for name in ("embed", "influence", "corrupt", "evaluate")]


def _files(world: World) -> dict[str, bytes]:
    made = world / "made"
    files = made.rglob("*") if made.is_dir() else [made]
    # A journal has times, and the index of a tar the time at which it was read.
    own_times = ("journal.jsonl", ".tar.index.arrow")
    return {path.name: path.read_bytes() for path in files if path.is_file() and not path.name.endswith(own_times)}


@pytest.mark.parametrize("name", [*WRITERS, *DEARER])
def test_a_killed_writer_gives_the_same_bytes_when_it_runs_again(name, world, pristine, capsys):
    shutil.rmtree(world / "cache")
    operations = watched(world.root, lambda number: None, lambda: world.run(name, out="made"))
    expected = _files(world)
    assert operations > 1 and expected
    for number in (operations // 2, operations - 1):
        shutil.rmtree(world.root)
        shutil.copytree(pristine, world.root, symlinks=True)
        with pytest.raises(Killed):
            watched(world.root, killed_at(number), lambda: world.run(name, out="made"))
        locks._locks.clear()  # as they are in the next process
        remember._remove_leftovers.cache_clear()
        world.run(name, out="made")
        assert _files(world) == expected
        assert not list((world / "made").rglob("*.part"))
