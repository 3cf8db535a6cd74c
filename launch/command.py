"""Code that launchers share: the `rococo` command of a run, the hash of its config, the disk of a cloud run, errors.

A launcher is called as `python launch/NAME.py [its own options] -- train --config FILE [--config.key=value ...]`, or
with `sweep` and its options: all points of the sweep, one after another, by all processes.
The words after `--` go to `rococo` unchanged. A run without `--workdir` gets a folder whose name holds the config's
hash, so that the same command finds the same run again, wherever it is launched.
"""

import argparse
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
# A launcher may run where nothing is installed, such as a laptop with gcloud: import from the package only modules that
# need the standard library alone.
sys.path.insert(0, str(CHECKOUT))

from rococo_jax.config_files import find_config  # noqa: E402
from rococo_jax.errors import InputError, as_input_error  # noqa: E402
from rococo_jax.storage import hash_bytes  # noqa: E402

OVERRIDE = re.compile(r"--config\.(?P<key>[A-Za-z_][\w.]*)=(?P<value>.*)", re.DOTALL)
USAGE = "-- train|sweep --config FILE [--workdir DIR] [--config.key=value ...]"
# What a command writes to the working folder when it is finished, but not when it was stopped.
RESULT = {"train": "model", "sweep": "sweep.json"}
# Options of `rococo sweep` that train nothing here.
NOT_HERE = ("--dry-run", "--print-commands", "--collect")
MOUNT = "/mnt/rococo"
# Cache of compiled programs, on storage that all hosts mount: process 0 writes it, and all read it at the next start.
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
MOUNTED_CACHE = f"{MOUNT}/compiled"
FORMS = {
    "bucket": re.compile(r"gs://(?P<host>[a-z0-9][a-z0-9._-]+)(?:/(?P<folder>.*))?"),
    "share": re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*):(?P<folder>/.*)"),
}


@dataclass(frozen=True)
class RunCommand:
    """A parsed `rococo train` or `rococo sweep`.

    Args:
        command: name of the command.
        config: path of the config file.
        options: other words of `sweep`, in order.
        overrides: `--config.key=value` words, in order.
        hash: SHA-256 of the config file, the overrides and the options, 64 hex digits.
        workdir: as given, or None.
    """

    command: str
    config: Path
    options: tuple[str, ...]
    overrides: tuple[str, ...]
    hash: str
    workdir: str | None

    @property
    def name(self) -> str:
        """Name of the run for machines and jobs: lower-case letters, digits and dashes, at most 40 of them."""
        stem = re.sub(r"[^a-z0-9]+", "-", self.config.stem.lower()).strip("-")[:20].strip("-")
        return "-".join(part for part in ("rococo", stem, self.hash[:12]) if part)

    @property
    def result(self) -> str:
        """Name of what the command writes to the working folder when it is finished."""
        return RESULT[self.command]

    def on(self, disk: "Disk") -> "RunCommand":
        """Return the command for a run with this disk mounted.

        With gcsfuse every seek is a request, so shards are read from front to back unless `data.order` is set.
        """
        values = dict(word.removeprefix("--config.").split("=", 1) for word in self.overrides)
        images = values.get("data.images", "").split(",")
        reads_from_disk = any(path.startswith(MOUNT) for path in images)
        if disk.kind != "bucket" or "data.order" in values or not reads_from_disk:
            return self
        overrides = (*self.overrides, "--config.data.order=shards")
        return replace(self, overrides=overrides, hash=config_hash(self.config.read_bytes(), overrides, self.options))

    def words(self, workdir: str, config: str | None = None) -> list[str]:
        """Return the words after `rococo`. `config` is the path of the config where the command will run."""
        config = str(self.config) if config is None else config
        return [self.command, "--config", config, "--workdir", workdir, *self.options, *self.overrides]


def read_run_command(words: Sequence[str]) -> RunCommand:
    """Parse `train --config FILE ...` or `sweep --config FILE ...`.

    Raises:
        InputError: another command, a missing config file, a word of `train` that is not an override, or an option by
            which a sweep would not run here.
    """
    if not words or words[0] not in RESULT:
        raise InputError("command line", "command after --", repr(words[0]) if words else "nothing", USAGE)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    parser.add_argument("--workdir")
    try:
        parsed, other_words = parser.parse_known_args(words[1:])
    except argparse.ArgumentError as error:
        raise InputError("command line", words[0], str(error), USAGE) from None
    if parsed.config is None:
        raise InputError("command line", "--config", "nothing", USAGE)
    config = find_config(parsed.config)
    overrides = tuple(word for word in other_words if OVERRIDE.fullmatch(word))
    options = tuple(word for word in other_words if not OVERRIDE.fullmatch(word))
    if words[0] == "train" and options:
        raise InputError("command line", "override", repr(options[0]), "--config.key=value")
    for option in NOT_HERE:
        if any(word.partition("=")[0] == option for word in options):
            raise InputError("command line", "sweep", option, "a sweep that trains its points here")
    hashed = config_hash(config.read_bytes(), overrides, options)
    return RunCommand(words[0], config, options, overrides, hashed, parsed.workdir)


def config_hash(config: bytes, overrides: Sequence[str], options: Sequence[str] = ()) -> str:
    """Return the SHA-256 of a config file's bytes, the overrides and other options, as 64 hex digits.

    Only the last override of each key counts. The order of keys does not matter.
    """
    last = {match["key"]: match["value"] for match in map(OVERRIDE.fullmatch, overrides)}
    return hash_bytes(config, *(f"{key}={last[key]}".encode() for key in sorted(last)), *map(str.encode, options))


def split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into those of the launcher and those after the first `--`."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def positive(text: str) -> int:
    """Parse a positive whole number, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"found {text!r}; wanted a whole number from 1")
    return int(text)


def path_in_checkout(config: Path) -> str:
    """Return the path of the config relative to the checkout, which is copied to other machines.

    Raises:
        InputError: the config is not in the checkout.
    """
    path = config.resolve()
    if not path.is_relative_to(CHECKOUT):
        raise InputError(config, "config", "a file outside the checkout", f"one inside {CHECKOUT}, which is copied")
    return path.relative_to(CHECKOUT).as_posix()


@dataclass(frozen=True)
class Disk:
    """Storage that all hosts of a cloud run mount at `MOUNT`. It exists longer than the machines.

    gs://BUCKET[/FOLDER]   a Cloud Storage bucket through gcsfuse
    HOST:/SHARE            an NFS share (Filestore)

    Args:
        kind: bucket or share.
        host: name of the bucket or host.
        folder: the folder on it; "" for the root.
    """

    kind: str
    host: str
    folder: str

    def __str__(self) -> str:
        return {
            "bucket": f"gs://{self.host}" + (f"/{self.folder}" if self.folder else ""),
            "share": f"{self.host}:{self.folder}",
        }[self.kind]


def read_disk(text: str) -> Disk:
    """Parse `--disk`.

    Raises:
        InputError: the text has none of the forms.
    """
    for kind, form in FORMS.items():
        if match := form.fullmatch(text):
            folder = match["folder"] or ""
            return Disk(kind, match["host"], folder.strip("/") if kind == "bucket" else folder)
    raise InputError("command line", "--disk", repr(text), "gs://BUCKET or HOST:/SHARE")


def mounted_workdir(command: RunCommand, disk: Disk) -> str:
    """Return the path of the run's working folder on the hosts.

    Raises:
        InputError: `--workdir` names a folder that is not on the disk.
    """
    workdir = command.workdir
    if workdir is None:
        return f"{MOUNT}/runs/{command.name}"
    if disk.kind == "bucket" and (workdir + "/").startswith(f"{disk}/"):
        workdir = workdir.removeprefix(str(disk)).lstrip("/")
    elif workdir.startswith("gs://"):
        raise InputError("command line", "--workdir", repr(workdir), f"a folder of --disk {disk}")
    path = posixpath.normpath(posixpath.join(MOUNT, workdir))
    if not path.startswith(MOUNT + "/"):
        raise InputError("command line", "--workdir", repr(workdir), f"a folder below {MOUNT}, where {disk} is mounted")
    return path


def as_shell(words: Sequence[str], environment: Mapping[str, str] = {}) -> str:
    """Quote words as one line for a shell, with environment variables before them."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(words)])


def call(words: Sequence[str], needs: str, text: str | None = None) -> subprocess.CompletedProcess:
    """Run a program and capture its output. `needs` names what provides the program; `text` is its input.

    Raises:
        InputError: there is no such program.
    """
    if shutil.which(words[0]) is None:
        raise InputError(words[0], "program", "nothing of that name on the PATH", needs)
    return subprocess.run(words, input=text, capture_output=True, text=True)


def call_or_refuse(words: Sequence[str], needs: str, text: str | None = None) -> str:
    """Run a program and return its output.

    Raises:
        InputError: there is no such program, or it failed; the error quotes its last line.
    """
    result = call(words, needs, text)
    if result.returncode:
        last_line = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise InputError(as_shell(words), f"exit code {result.returncode}", last_line, "0")
    return result.stdout


def log(message: str) -> None:
    """Print a line of the launcher on standard error."""
    print(f"launch: {message}", file=sys.stderr, flush=True)


def run_main(main: Callable[[Sequence[str]], int]) -> None:
    """Run a launcher's `main`. Bad input is reported in one line with exit code 2, as by `rococo`."""
    try:
        sys.exit(main(sys.argv[1:]))
    except Exception as error:
        refused = as_input_error(error)
        if refused is None:
            raise
        log(" ".join(str(refused).split()))
        sys.exit(2)
