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
import sys
from collections.abc import Sequence
from pathlib import Path

from command import (
    CACHE_VARIABLE,
    InputError,
    RunCommand,
    as_shell,
    call_or_refuse,
    log,
    positive,
    read_run_command,
    run_main,
    split_at_dashes,
)

SLURM = "SLURM's client programs, as on a cluster's login node"
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")


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
    train = shlex.join([options.python, "-m", "rococo_jax", *command.words(workdir, str(command.config.absolute()))])
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
    options, command = parse(arguments)
    queued = ["squeue", "--me", "--noheader", f"--name={command.name}", "--format=%i %T"]
    submit, cancel = ["sbatch", "--parsable"], ["scancel", "--me", f"--name={command.name}"]
    if options.dry_run:
        calls = [cancel] if options.stop else [queued, submit]
        print(*(f"# would run: {as_shell(words)}" for words in calls), sep="\n", file=sys.stderr)
        if not options.stop:
            print(render(options, command), end="")
        return 0
    if options.stop:
        call_or_refuse(cancel, SLURM)
        log(f"{command.name}: cancelled, wherever it was queued or ran")
        return 0
    if jobs := call_or_refuse(queued, SLURM).strip():
        log(f"{command.name}: there already as job {'; '.join(jobs.splitlines())}")
        return 0
    job = call_or_refuse(submit, SLURM, render(options, command)).strip().split(";")[0]
    log(f"{command.name}: job {job}, log {command.name}-{job}.log; `scancel {job}` stops it")
    return 0


if __name__ == "__main__":
    run_main(main)
