"""Code that launchers share: the `rococo` command of a run, the hash of its config, errors.

A launcher is called as `python launch/NAME.py [its own options] -- train --config FILE [--config.key=value ...]`, or
with `sweep` and its options: all points of the sweep, one after another, by all processes.
The words after `--` go to `rococo` unchanged. A run without `--workdir` gets a folder whose name holds the config's
hash, so that the same command finds the same run again, wherever it is launched.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
# A launcher may run where nothing is installed: import from the package only modules that need the standard library
# alone.
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
# Cache of compiled programs, on storage that all hosts mount: process 0 writes it, and all read it at the next start.
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"


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


def as_shell(words: Sequence[str], environment: Mapping[str, str] = {}) -> str:
    """Quote words as one line for a shell, with environment variables before them."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(words)])


def call_or_refuse(words: Sequence[str], needs: str, text: str | None = None) -> str:
    """Run a program and return its output. `needs` names what provides the program; `text` is its input.

    Raises:
        InputError: there is no such program, or it failed; the error quotes its last line.
    """
    if shutil.which(words[0]) is None:
        raise InputError(words[0], "program", "nothing of that name on the PATH", needs)
    result = subprocess.run(words, input=text, capture_output=True, text=True)
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
