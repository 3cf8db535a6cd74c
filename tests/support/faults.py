"""Faults as rows of a table: a name, what is damaged, the command, and how the command line has to answer.

A row damages a `World`, a folder with everything that the commands read; the command then runs in this process, in that
folder. What is bad input ends with exit code 2 and one line, and leaves no temporary file.
"""

import contextlib
import dataclasses
import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import build_model, parameters_of
from rococo_jax.cli.main import main
from rococo_jax.encoders import Encoder, load_model
from tests.support.tiny import WORDS, exportable_encoder, tiny_encoder
from tests.support.tiny_runs import write_config_file
from tests.support.world import noise, write_world

IMAGES, EACH = 12, 5
PAIRS = "--images {images} --captions captions.json"
# Commands in a world, and what each writes by default: a file where it has a suffix.
COMMANDS = {
    "evaluate": ("evaluate {model} --images {images} --annotations annotations --out {out} --mixed-galleries none "
                 "--no-report --cache cache", "out"),
    "score": ("score --similarities s.npy --annotation annotations/coco_karpathy_test.json --out {out}", "score.json"),
    "embed": (f"embed {{model}} {PAIRS} --out {{out}} --cache cache", "e.npz"),
    "report": ("report truth --out {out}", "report.html"),
    "convert": ("convert hf {out}", "converted"),
    "export": ("export legacy {out}", "exported"),
    "join": (f"join model model {{out}} {PAIRS}", "joined"),
    "train": ("train --config config.py --workdir {out}", "workdir"),
    "pack": (f"pack {PAIRS} --out {{out}} --shards 2", "packed"),
    "mix": (f"mix-images {PAIRS} --out {{out}}", "mixed"),
    "corrupt": ("corrupt-images --images {images} --corruption brightness --severity 1 --out {out}", "corrupted"),
    "make": (f"make-benchmark {PAIRS} --name own --mixed mix_0.9 --out {{out}}", "made"),
    "alter": ("alter-captions model --captions captions.json --variant danger --select random --out {out}", "a.json"),
    "influence": ("influence model --captions captions.json --out {out}", "influence.jsonl"),
    "attention": ("attention model --images {images} --out {out}", "attention.html"),
    "verify": ("verify --annotations annotations --out {out}", "audit.json"),
    "inspect": ("inspect model", ""),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class World:
    """A folder of inputs that a test may damage: `model`, `hf`, `images`, `captions.json`, `annotations`, ..."""

    root: Path

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    def command(self, name: str, *extra: object, out: str = "", model: str = "model", images: str = "images") -> list:
        """The words of a command of `COMMANDS`."""
        line, usual = COMMANDS[name]
        return [*line.format(out=out or usual, model=model, images=images).split(), *map(str, extra)]

    def run(self, name: str, *extra: object, code: int = 0, **places: str) -> None:
        """Run a command."""
        with contextlib.chdir(self.root):
            assert main(self.command(name, *extra, **places)) == code

    def assert_undisturbed(self) -> None:
        """The results are those of an undisturbed run; only the folders that they name may be others."""
        found, wanted = (json.loads((self / name / "results.json").read_text()) for name in ("out", "truth"))
        for key in ("data", "sha256"):
            del found[key], wanted[key]
        assert found == wanted
        for name in ("per_query.parquet", "pairs.parquet"):
            assert (self / "out" / name).read_bytes() == (self / "truth" / name).read_bytes()

    def weights(self, change: Callable[[dict[str, np.ndarray]], object]) -> None:
        """Change the parameters of `model`; their hash is written anew, as a trainer would write it."""
        encoder = load_model(self / "model")
        arrays = {path: np.array(array) for path, array in parameters_of(encoder.model).items()}
        change(arrays)
        shutil.rmtree(self / "model")
        built = build_model(encoder.spec, arrays)
        save_model(self / "model", Encoder(built, encoder.preprocessing, encoder.tokenizer, encoder.provenance))


Damage = Callable[[World], object]


def edited(file: str, change: Callable[[Any], object]) -> Damage:
    """Damage: the value of a JSON file changed in place; what `change` returns is not used."""

    def damage(world: World) -> None:
        value = json.loads((world / file).read_text())
        change(value)
        (world / file).write_text(json.dumps(value))

    return damage


def with_value(file: str, keys: str, value: object) -> Damage:
    """Damage: the value below `keys`, with dots, in a JSON file is another."""
    *above, last = keys.split(".")

    def change(node: Any) -> None:
        for key in above:
            node = node[key]
        node[last] = value

    return edited(file, change)


def written(file: str, content: str | bytes) -> Damage:
    """Damage: a file has this content."""
    return lambda world: (world / file).write_bytes(content if isinstance(content, bytes) else content.encode())


def undamaged(world: World) -> None:
    """The command itself is wrong."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A row: what is wrong, the command that meets it, and the answer.

    Attributes:
        name: as the list of faults calls it.
        damage: what is done to a world.
        says: a pattern that the error line has, or with code 0 the output or the errors.
        command: one of `COMMANDS`, or the words that a world is asked for.
        code: the exit code.
        after: what has to be true afterwards.
    """

    name: str
    damage: Damage
    says: str = ""
    command: str | Callable[[World], Sequence[object]] = "evaluate"
    code: int = 2
    after: Damage | None = None

    def check(self, world: World, capsys) -> None:
        """Make the fault, run the command, and check the answer."""
        self.damage(world)
        command = world.command(self.command) if isinstance(self.command, str) else self.command(world)
        capsys.readouterr()
        try:
            with contextlib.chdir(world.root):
                code = main([str(word) for word in command])
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        assert code == self.code and "Traceback" not in printed.err, printed.err
        text = printed.out + printed.err
        if self.code == 2:
            text = printed.err.splitlines()[-1]
            assert re.match("rococo: .*: found .*; wanted ", text), printed.err
        assert re.search(self.says, text), text
        assert not [path for path in world.root.rglob("*.part")]
        if self.after is not None:
            self.after(world)


def each_of(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    """Run a test once for each row, as its argument `fault`."""
    return pytest.mark.parametrize("fault", faults, ids=[fault.name for fault in faults])


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """The system refuses to write a file of more bytes: a real error, as of a full disk, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make_world(root: Path) -> World:
    """Write all inputs; some seconds, once a session."""
    world = World(root)
    rng = np.random.default_rng(0)
    captions = [[f"{' '.join(rng.choice(WORDS, 4))} {number} {k}" for k in range(EACH)] for number in range(IMAGES)]
    altered = {"same_concept": "{} gun".format, "danger": "{} un".format}
    write_world(root, captions, picture=noise(40, 41), altered=altered)
    save_model(root / "model", tiny_encoder())
    save_model(root / "other", tiny_encoder(seed=1))
    save_model(root / "legacy", exportable_encoder())
    world.run("export", out="hf")
    np.save(root / "s.npy", rng.normal(size=(IMAGES, IMAGES * EACH)).astype(np.float32))
    world.run("evaluate", out="truth")
    (root / "cache").rename(root / "embeddings")
    paths = {"init__model": "model", "data__images": "images", "data__captions": "captions.json"}
    write_config_file(root, steps=2, batch_size=8, checkpoint__every=1, **paths)
    return world
