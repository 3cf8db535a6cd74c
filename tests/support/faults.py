"""Faults as rows of a table: a name, how to make it, and how the command line has to answer.

A row's function damages a `World`, a folder with everything that the commands read, and returns a command. The command
then runs in this process. What is bad input ends with exit code 2 and one line, and leaves no temporary file.
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
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from tests.support.tiny import WORDS, tiny_encoder, tiny_spec
from tests.support.world import noise, write_world

IMAGES, EACH = 12, 5


@dataclasses.dataclass(frozen=True)
class World:
    """A folder of inputs that a test may damage: `model`, `hf`, `images`, `captions.json`, `annotations`, `out`, ..."""

    root: Path

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    def run(self, command: Sequence[object], code: int = 0) -> None:
        """Runs a command that comes before the fault."""
        with contextlib.chdir(self.root):
            assert main([str(word) for word in command]) == code

    def assert_undisturbed(self, out: str = "out") -> None:
        """The results are those of an undisturbed run; only the folders that they name may be others."""
        found, wanted = (json.loads((self / name / "results.json").read_text()) for name in (out, "truth"))
        for key in ("data", "sha256"):
            del found[key], wanted[key]
        assert found == wanted
        for name in ("per_query.parquet", "per_image.parquet"):
            assert (self / out / name).read_bytes() == (self / "truth" / name).read_bytes()

    def evaluate(self, *extra: object, model: str = "model", out: str = "out") -> list:
        """`rococo evaluate` of the annotations, with the world's own cache."""
        places = ["--images", self / "images", "--annotations", self / "annotations", "--out", self / out]
        few = ["--mixed-galleries", "none", "--no-report", "--cache", self / "cache"]
        return ["evaluate", self / model, *places, *few, *extra]

    def embed(self, *extra: object, model: str = "model", out: str = "e.npz") -> list:
        """`rococo embed`."""
        data = ["--images", self / "images", "--captions", self / "captions.json"]
        return ["embed", self / model, *data, "--out", self / out, "--cache", self / "cache", *extra]

    def score(self, *extra: object, out: str = "score.json") -> list:
        """`rococo score` of a matrix for the clean captions."""
        annotation = self / "annotations/coco_karpathy_test.json"
        return ["score", "--similarities", self / "s.npy", "--annotation", annotation, "--out", self / out, *extra]

    def convert(self, source: str = "hf") -> list:
        """`rococo convert` of a foreign folder."""
        return ["convert", self / source, self / "converted"]

    def mix(self, *extra: object, images: str = "images", out: str = "mixed") -> list:
        """`rococo mix-images`."""
        return ["mix-images", "--images", self / images, "--captions", self / "captions.json", "--out", self / out,
                *extra]  # fmt: skip

    def make(self, out: str = "made") -> list:
        """`rococo make-benchmark`."""
        return ["make-benchmark", "--images", self / "images", "--captions", self / "captions.json", "--name", "own",
                "--mixed", "mix_0.9", "--out", self / out]  # fmt: skip

    def corrupt(self, *extra: object, images: str = "images", out: str = "corrupted") -> list:
        """`rococo corrupt-images`, of a cheap kind."""
        return ["corrupt-images", "--images", self / images, "--corruption", "brightness", "--severity", "1",
                "--out", self / out, *extra]  # fmt: skip

    def pack(self, *extra: object, images: str = "images", out: str = "packed") -> list:
        """`rococo pack` into two shards."""
        data = ["--images", self / images, "--captions", self / "captions.json"]
        return ["pack", *data, "--out", self / out, "--shards", "2", *extra]

    def influence(self, *extra: object, out: str = "influence.jsonl") -> list:
        """`rococo influence`."""
        return ["influence", self / "model", "--captions", self / "captions.json", "--out", self / out, *extra]

    def alter(self, *extra: object, out: str = "altered.json") -> list:
        """`rococo alter-captions`."""
        data = ["--captions", self / "captions.json", "--variant", "danger", "--select", "random"]
        return ["alter-captions", self / "model", *data, "--out", self / out, *extra]

    def train(self, *overrides: str, config: str = "config.py", workdir: str = "workdir") -> list:
        """`rococo train`, a few steps."""
        return ["train", "--config", self / config, "--workdir", self / workdir,
                *(f"--config.{each}" for each in overrides)]  # fmt: skip

    def edit(self, name: str, change: Callable[[Any], object]) -> None:
        """Changes the value of a JSON file in place; what `change` returns is not used."""
        path = self / name
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    def weights(self, change: Callable[[dict[str, np.ndarray]], None], model: str = "model") -> None:
        """Changes the parameters of a model directory; its hash is written anew, as a trainer would write it."""
        from rococo_jax.checkpoints.parameters import build_model, parameters_of
        from rococo_jax.encoders import Encoder

        encoder = load_model(self / model)
        arrays = {path: np.array(array) for path, array in parameters_of(encoder.model).items()}
        change(arrays)
        shutil.rmtree(self / model)
        built = build_model(encoder.spec, arrays)
        save_model(self / model, Encoder(built, encoder.preprocessing, encoder.tokenizer, encoder.provenance))


@dataclasses.dataclass(frozen=True)
class Fault:
    """A row: what is wrong, how to make it, and the answer.

    Attributes:
        name: as the list of faults calls it.
        make: damages a world and returns the command to run.
        code: the exit code.
        says: a pattern that the error line has, or with code 0 the output or the errors.
        after: what has to be true afterwards.
        thorough: a cheaper row shows the same.
    """

    name: str
    make: Callable[[World], Sequence[object]]
    code: int = 2
    says: str = ""
    after: Callable[[World], None] | None = None
    thorough: bool = False

    def check(self, world: World, capsys) -> None:
        """Makes the fault, runs the command, and checks the answer."""
        command = [str(word) for word in self.make(world)]
        capsys.readouterr()
        try:
            with contextlib.chdir(world.root):
                code = main(command)
        except SystemExit as stop:
            code = stop.code
        printed = capsys.readouterr()
        assert code == self.code, printed.err
        assert "Traceback" not in printed.err
        if self.code == 2:
            *_, line = printed.err.splitlines()
            assert line.startswith("rococo: ") and ": found " in line and "; wanted " in line, printed.err
            assert re.search(self.says, line), line
        else:
            assert re.search(self.says, printed.out + printed.err), printed.out + printed.err
        assert not [path for path in world.root.rglob("*.part")]
        if self.after is not None:
            self.after(world)


class Table(list):
    """The rows of one file. `@TABLE.row(name, ...)` adds one; `TABLE.each` parametrises the test."""

    def row(self, name: str, **expected) -> Callable:
        """Adds the decorated function as a row."""

        def add(make: Callable[[World], Sequence[object]]) -> Callable:
            self.append(Fault(name, make, **expected))
            return make

        return add

    @property
    def each(self) -> pytest.MarkDecorator:
        """Runs a test once a row."""
        assert len({fault.name for fault in self}) == len(self)
        marks = {True: [pytest.mark.thorough], False: []}
        return pytest.mark.parametrize(
            "fault", [pytest.param(fault, id=fault.name, marks=marks[fault.thorough]) for fault in self]
        )


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
    """Writes all inputs; some seconds, once a session."""
    world = World(root)
    rng = np.random.default_rng(0)
    captions = [[f"{' '.join(rng.choice(WORDS, 4))} {number} {k}" for k in range(EACH)] for number in range(IMAGES)]
    altered = {"same_concept": "{} gun".format, "danger": "{} un".format}
    write_world(root, captions, picture=noise(40, 41), altered=altered)
    save_model(root / "model", tiny_encoder())
    save_model(root / "other", tiny_encoder(seed=1))
    spec = tiny_spec()
    legacy = dataclasses.replace(spec, text=dataclasses.replace(spec.text, pooling="highest_id", eos_id=None))
    save_model(root / "legacy", tiny_encoder(spec=legacy))
    world.run(["export", root / "legacy", root / "hf"])
    np.save(root / "s.npy", rng.normal(size=(IMAGES, IMAGES * EACH)).astype(np.float32))
    world.run(world.evaluate(out="truth"))
    shutil.rmtree(root / "cache")
    (root / "config.py").write_text(
        "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n"
        "    config = default_config()\n"
        "    config.steps, config.batch_size, config.fsdp = 2, 8, 1\n"
        "    config.init.model, config.data.images, config.data.captions = 'model', 'images', 'captions.json'\n"
        "    config.log.every = config.checkpoint.every = 1\n"
        "    config.log.tensorboard = False\n"
        "    return config\n"
    )
    return world
