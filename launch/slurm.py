"""Train on several GPU nodes under SLURM: render a batch script and submit it.

    python launch/slurm.py --nodes 4 --gpus 8 --time 24:00:00 -- train --config configs/coco_finetune.py \\
        --config.batch_size=32768

There is one task for each GPU. Before the time limit, and on preemption, SLURM sends SIGTERM; the run saves and ends,
and the job is requeued until the model (of a sweep, the table) is written. The same command submits nothing while such
a job is queued or runs. This folder, this Python and the working folder must be on a disk that all nodes mount.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
# A login node may have nothing installed: import from the package only modules that need the standard library alone.
sys.path.insert(0, str(CHECKOUT))

from rococo_jax.config_files import find_config  # noqa: E402
from rococo_jax.errors import InputError, report_in_one_line  # noqa: E402
from rococo_jax.storage import hash_bytes  # noqa: E402

OVERRIDE = re.compile(r"--config\.(?P<key>[A-Za-z_][\w.]*)=(?P<value>.*)", re.DOTALL)
SLURM = "SLURM's client programs, as on a cluster's login node"
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
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

    def words(self, workdir: str) -> list[str]:
        """Return the words after `rococo`."""
        config = str(self.config.absolute())
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


def call_or_refuse(words: Sequence[str], text: str | None = None) -> str:
    """Run a program of SLURM on the input `text` and return its output.

    Raises:
        InputError: there is no such program, or it failed; the error quotes its last line.
    """
    if shutil.which(words[0]) is None:
        raise InputError(words[0], "program", "nothing of that name on the PATH", SLURM)
    result = subprocess.run(words, input=text, capture_output=True, text=True)
    if result.returncode:
        last_line = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise InputError(shlex.join(words), f"exit code {result.returncode}", last_line, "0")
    return result.stdout


def log(message: str) -> None:
    """Print a line of the launcher on standard error."""
    print(f"launch: {message}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, RunCommand]:
    parser = argparse.ArgumentParser(
        prog="launch/slurm.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- train|sweep --config FILE [--workdir DIR] [--config.key=value ...]",
    )
    parser.add_argument("--nodes", type=positive, default=1)
    parser.add_argument("--gpus", type=positive, default=8, help="of a node, one task each (default 8)")
    parser.add_argument("--cpus-per-gpu", type=positive, default=8, help="for decoding images (default 8)")
    parser.add_argument("--time", default="24:00:00", help="time limit of each job, as sbatch takes it (default 24 h)")
    parser.add_argument("--save-seconds", type=positive, default=120,
                        help="between SIGTERM and the time limit (default 120)")  # fmt: skip
    parser.add_argument("--restarts", type=positive, default=100, help="times that the job is requeued (default 100)")
    parser.add_argument("--timeout", type=positive, default=300, help="seconds that tasks wait for one another")
    parser.add_argument("--coordinator", choices=("first-host", "auto"), default="first-host",
                        help="address of process 0: the first host, or found by JAX")  # fmt: skip
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION",
                        help="a further #SBATCH option, as --sbatch=--partition=gpu; can be repeated")  # fmt: skip
    parser.add_argument("--setup", action="append", default=[], metavar="LINE",
                        help="a shell line before the run, as --setup='module load cuda'; can be repeated")  # fmt: skip
    parser.add_argument("--python", default=sys.executable, help="that has rococo_jax (default: this one)")
    parser.add_argument("--stop", action="store_true", help="cancel this run's jobs")
    parser.add_argument("--dry-run", action="store_true", help="print the script; on stderr what would be called")
    own_words, forwarded = split_at_dashes(arguments)
    options, command = parser.parse_args(own_words), read_run_command(forwarded)
    if not TIME.fullmatch(options.time):
        raise InputError("command line", "--time", repr(options.time), "minutes, or [days-]hours:minutes:seconds")
    for line in options.sbatch:
        if not line.startswith("-") or "\n" in line:
            raise InputError("command line", "--sbatch", repr(line), "one option of sbatch, as --partition=gpu")
    return options, command


def render(options: argparse.Namespace, command: RunCommand) -> str:
    """Return the batch script."""
    tasks = options.nodes * options.gpus
    workdir = str(Path(command.workdir or f"runs/{command.name}").absolute())
    train = shlex.join([options.python, "-m", "rococo_jax", *command.words(workdir)])
    sbatch_options = {
        "job-name": command.name,
        "comment": f"config-hash={command.hash}",
        "nodes": options.nodes,
        "ntasks": tasks,
        "ntasks-per-node": options.gpus,
        "gpus-per-node": options.gpus,
        "cpus-per-task": options.cpus_per_gpu,
        "time": options.time,
        # Sent to the tasks, not to this script, which continues when they have saved and ended.
        "signal": f"TERM@{options.save_seconds}",
        "open-mode": "append",
        "output": f"{command.name}-%j.log",
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in sbatch_options.items())]
    lines += ["#SBATCH --requeue", *(f"#SBATCH {line}" for line in options.sbatch)]
    lines += ["", "set -euo pipefail", f"cd {shlex.quote(str(Path.cwd()))}", *options.setup, ""]
    # What this shell or a --setup line has set counts. Runs side by side share the folder.
    compiled = shlex.quote(str(Path(workdir).parent / "compiled"))
    lines += [f"compiled={compiled}", f'export {CACHE_VARIABLE}="${{{CACHE_VARIABLE}:-$compiled}}"']
    lines += [f"export ROCOCO_TIMEOUT={options.timeout}"]
    if options.coordinator == "auto":
        lines += ["export ROCOCO_COORDINATOR=auto"]
        task = train
    else:
        lines += [
            'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "first_host=${hosts%%$'\\n'*}",
            'export ROCOCO_COORDINATOR="$first_host:$((20000 + SLURM_JOB_ID % 20000))"',
            f"export ROCOCO_PROCESSES={tasks}",
        ]
        task = f"""bash -c 'ROCOCO_PROCESS=$SLURM_PROCID exec "$@"' task {train}"""
    lines += [
        "",
        "# Preemption signals this script, too; without a handler bash would end before the tasks have saved.",
        "trap 'echo \"SIGTERM: the tasks are saving\"' TERM",
        "code=0",
        "# shellcheck disable=SC2016 # the text in single quotes is for the task, not for this shell",
        f"srun --kill-on-bad-exit=1 {task} || code=$?",
        "",
        "# Exit code 0 (or SIGTERM before there was anything to save) without a result: the run was stopped.",
        f'if [[ ( "$code" -eq 0 || "$code" -eq 143 ) && ! -e {shlex.quote(f"{workdir}/{command.result}")} ]]; then',
        f'    if [[ "${{SLURM_RESTART_COUNT:-0}}" -ge {options.restarts} ]]; then',
        f'        echo "stopped, and back in the queue {options.restarts} times already"',
        "        exit 75",
        "    fi",
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the launcher. Bad input is reported in one line with exit code 2, as by `rococo`."""
    try:
        return submit_or_stop(*parse(arguments))
    except Exception as error:
        code = report_in_one_line(error)
        if code is None:
            raise
        return code


def submit_or_stop(options: argparse.Namespace, command: RunCommand) -> int:
    """Submit the job unless it is queued already, or cancel it, or print what would be done."""
    queued = ["squeue", "--me", "--noheader", f"--name={command.name}", "--format=%i %T"]
    submit, cancel = ["sbatch", "--parsable"], ["scancel", "--me", f"--name={command.name}"]
    if options.dry_run:
        calls = [cancel] if options.stop else [queued, submit]
        print(*(f"# would run: {shlex.join(words)}" for words in calls), sep="\n", file=sys.stderr)
        if not options.stop:
            print(render(options, command), end="")
        return 0
    if options.stop:
        call_or_refuse(cancel)
        log(f"{command.name}: cancelled, wherever it was queued or ran")
        return 0
    if jobs := call_or_refuse(queued).strip():
        log(f"{command.name}: there already as job {'; '.join(jobs.splitlines())}")
        return 0
    job = call_or_refuse(submit, render(options, command)).strip().split(";")[0]
    log(f"{command.name}: job {job}, log {command.name}-{job}.log; `scancel {job}` stops it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
