"""Kill every command that writes, at random file operations and moments; the same command again gives the same bytes.

    python experiments/kill_every_writer.py --out DIR [--kills 20] [--writers mix,pack,...] [--seed 0]

Every run is a process of its own, forked from one that has the imports done. Each writer runs once undisturbed. Then,
so many times: it starts in a fresh copy of the inputs, dies by SIGKILL (in turns before a random one of its file
operations and after a random part of its time), and the same command runs again to its end. Compared are all files of
the output.
The files of a model's parameters have names and an order that Orbax draws; there the loaded parameters count.
Prints one JSON line a writer: kills that met it running, runs that gave the same bytes, what was left over, and the
files that differ.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rococo_jax.benchmarks import benchmark as registry
from rococo_jax.cli.main import main as rococo
from rococo_jax.data.downloads import Download
from tests.data.test_downloads import CONTENT, DIGEST
from tests.support.faults import COMMANDS, World, make_world
from tests.support.file_server import Server
from tests.support.kills import sigkill_at, watched

# What a second run may write otherwise: times and rates, and what TensorBoard or Orbax date.
_DATED = ("journal.jsonl", "metrics.jsonl", "tensorboard", "checkpoints", "params")
# The index of a tar has the state of that file, such as its inode; an undisturbed run leaves it, too.
_INDEX = ".tar.index.arrow"
# Tables and figures of a sweep show images a second; of its JSON everything else counts.
_DRAWN = ("sweep.csv", "sweep.html", "sweep.md", "sweep.svg")


def writers(world: World) -> dict[str, list]:
    """Command lines by name; each writes `world / "made"`."""
    more = {"join": ["--dim", "4", "--no-cache"]}
    out = {"report": "made.html", "attention": "made.html"}
    names = (name for name, (_, usual) in COMMANDS.items() if usual)
    lines = {name: world.command(name, *more.get(name, ()), out=out.get(name, "made")) for name in names}
    sweep = "sweep --config config.py --workdir made --images images --annotations annotations --mixed-galleries none "
    sweep += "--cache cache --over optimizer.learning_rate=0.001,0.002"
    return lines | {"fetch": "fetch rococo --data made".split(), "sweep": sweep.split()}


def serve_downloads() -> None:
    """`rococo fetch rococo` gets a file and an archive from a server of this process."""
    server = Server({"/file.bin": CONTENT})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for number in range(4):
            file.writestr(f"val/{number}.bin", CONTENT[: 50_000 * (number + 1)])
    server.files["/val.zip"] = archive.getvalue()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    downloads = (
        Download(f"{address}/file.bin", "rococo/annotations/danger.json", "annotations", DIGEST, len(CONTENT)),
        Download(f"{address}/val.zip", "coco/val", "images", unpack="val"),
    )
    made = dataclasses.replace(registry.find_benchmark("rococo"), downloads=downloads)
    registry.find_benchmark = lambda name: made


def forked(world: World, command: list, prepare: Callable[[Callable[[], None]], None], log: Path) -> tuple[int, float]:
    """The command in a child process, which `prepare` runs: its exit code, negative for a signal, and the seconds."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(world.root)
        code = [1]

        def run() -> None:
            code[0] = rococo([str(word) for word in command])

        try:
            prepare(run)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code[0])
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), time.monotonic() - began


def bytes_of(world: World) -> dict[str, str]:
    """Name -> hash of every file of the output that is not dated."""
    files = [path for place in world.root.glob("made*") for path in (place.rglob("*") if place.is_dir() else [place])]
    kept = [path for path in files if path.is_file() and not set(path.relative_to(world.root).parts) & set(_DATED)]
    found = {
        str(path.relative_to(world.root)): hashlib.sha256(_undated(path)).hexdigest()
        for path in sorted(kept)
        if path.name not in (*_DRAWN, ".lock") and not path.name.endswith(_INDEX)
    }
    # The description of where a run began has no parameters.
    models = [path.parent for path in kept if path.name == "model.json" and (path.parent / "params").is_dir()]
    return found | {f"{folder.relative_to(world.root)}: parameters": _parameters(folder) for folder in models}


def _undated(path: Path) -> bytes:
    if path.name != "sweep.json":
        return path.read_bytes()
    value = json.loads(path.read_text())
    for row in value["rows"]:
        row["training"].pop("images_per_second")
    return json.dumps(value).encode()


def _parameters(folder: Path) -> str:
    """Hash of a model's parameters, loaded in a child; "broken" where they cannot be."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            from rococo_jax.checkpoints.parameters import hash_parameters, parameters_of
            from rococo_jax.encoders import load_model

            os.write(writing, hash_parameters(parameters_of(load_model(folder).model)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found or f"broken {time.monotonic()}"


def left_over(world: World) -> list[str]:
    """Temporary files and locks below the world."""
    hidden = (path for path in world.root.rglob(".*") if "checkpoints" not in path.parts)
    return sorted({path.suffix or path.name for path in hidden if not path.name.endswith(_INDEX)})


def try_writer(name: str, pristine: Path, work: Path, kills: int, chance: random.Random) -> dict:
    """One writer: undisturbed, then killed and run again, `kills` times."""
    log, numbers = work / f"{name}.txt", work / "operations"

    def fresh() -> World:
        shutil.rmtree(work / "world", ignore_errors=True)
        return World(Path(shutil.copytree(pristine, work / "world", symlinks=True)))

    def count(run: Callable[[], None]) -> None:
        numbers.write_text(str(watched(work / "world", lambda number: None, run)))

    world = fresh()
    code, seconds = forked(world, writers(world)[name], count, log)
    if code:
        raise SystemExit(f"{name}, undisturbed, ends with {code}: {log.read_text()[-500:]}")
    expected, operations = bytes_of(world), int(numbers.read_text())
    found = {"writer": name, "exit": code, "operations": operations, "seconds": round(seconds, 1)}
    met, same, codes, left, differ = 0, 0, set(), set(), set()
    for number in range(kills):
        world = fresh()
        command = writers(world)[name]
        if number % 2:
            at = chance.randint(1, operations)
            prepare = lambda run, at=at: watched(work / "world", sigkill_at(at), run)  # noqa: E731
        else:
            delay = chance.uniform(0.05, 1.0) * seconds

            def prepare(run: Callable[[], None], delay: float = delay) -> None:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                killer = os.fork()
                if killer == 0:
                    parent = os.getppid()
                    time.sleep(delay)
                    if os.getppid() == parent:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(parent, signal.SIGKILL)
                    os._exit(0)
                run()

        met += forked(world, command, prepare, log)[0] == -signal.SIGKILL
        codes.add(forked(world, command, lambda run: run(), log)[0])
        made = bytes_of(world)
        same += made == expected
        differ |= {name for name in made.keys() | expected.keys() if made.get(name) != expected.get(name)}
        left |= set(left_over(world))
    return {**found, "kills": kills, "killed while running": met, "same bytes": same, "exits again": sorted(codes),
            "left": sorted(left), "differ": sorted(differ)}  # fmt: skip


def main() -> None:
    """Try all writers and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="a new folder")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--writers", help="names, separated by commas (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    work = arguments.out.absolute()
    work.mkdir(parents=True)
    os.environ["ROCOCO_CACHE"] = str(work / "rococo-cache")
    # In a child: a process that has started JAX cannot be forked.
    made = os.fork()
    if made == 0:
        make_world(work / "pristine")
        os._exit(0)
    os.waitpid(made, 0)
    serve_downloads()
    chosen = arguments.writers.split(",") if arguments.writers else list(writers(World(work)))
    for name in chosen:
        found = try_writer(name, work / "pristine", work, arguments.kills, random.Random(f"{arguments.seed} {name}"))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
