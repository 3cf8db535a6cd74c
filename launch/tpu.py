"""Trains on a Cloud TPU slice of one host or many: creates the slice or takes an existing one, copies the checkout,
starts `rococo train` on all hosts, follows the log of the first, and deletes the slice.

    python launch/tpu.py --zone us-west4-a --accelerator v5litepod-16 --runtime v2-alpha-tpuv5-lite --spot \\
        --disk gs://my-bucket -- train --config configs/coco_finetune.py --config.batch_size=32768

Only `gcloud` is needed. The slice is a queued resource (`--direct`: a TPU VM created at once, or not at all). Training
continues when this program is interrupted; the same command then follows it again. A preempted spot slice is requested
again, and the run continues from its last checkpoint on the disk. `--stop` saves, ends the run and deletes the slice.
"""

import argparse
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from command import (
    CHECKOUT,
    InputError,
    RunCommand,
    as_shell,
    call,
    call_or_refuse,
    log,
    mounted_workdir,
    path_in_checkout,
    positive,
    read_disk,
    read_run_command,
    run_main,
    split_at_dashes,
)

GCLOUD = "the Google Cloud SDK, logged in"
# What a host needs of the checkout, beside the config.
COPIED = ("rococo_jax", "configs", "launch", "pyproject.toml", "setup.cfg", "README.md", "LICENSE")
STOPPED, CONNECTION_LOST = 75, 255
READY, LOST = ("ACTIVE", "READY"), ("FAILED", "SUSPENDED", "PREEMPTED", "TERMINATED", "STOPPED")


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, RunCommand]:
    parser = argparse.ArgumentParser(
        prog="launch/tpu.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- train|sweep --config FILE [--workdir DIR] [--config.key=value ...]",
    )
    parser.add_argument("--zone", required=True)
    parser.add_argument("--project", help="gcloud's own by default")
    parser.add_argument("--name", help="of the slice (default: from the config's hash)")
    parser.add_argument("--accelerator", required=True, help="as v5litepod-16")
    parser.add_argument("--runtime", required=True, help="software version of the TPU VMs, as v2-alpha-tpuv5-lite")
    parser.add_argument("--disk", required=True, help="gs://BUCKET[/FOLDER] or HOST:/SHARE: the workdir's")
    parser.add_argument("--spot", action="store_true")
    parser.add_argument("--direct", action="store_true", help="a TPU VM instead of a queued resource")
    parser.add_argument("--restarts", type=int, default=20, help="after the slice or the run was stopped (default 20)")
    parser.add_argument("--timeout", type=positive, default=600,
                        help="seconds that hosts wait for one another, installing included (default 600)")  # fmt: skip
    parser.add_argument("--poll", type=float, default=30, help="seconds between two looks at the slice (default 30)")
    parser.add_argument("--keep", action="store_true", help="keep the slice, and its price, when the run has ended")
    parser.add_argument("--stop", action="store_true", help="save, end the run, and give the slice back")
    parser.add_argument("--dry-run", action="store_true", help="print what would be called, in order")
    own_words, forwarded = split_at_dashes(arguments)
    options, command = parser.parse_args(own_words), read_run_command(forwarded)
    options.disk = read_disk(options.disk)
    command = command.on(options.disk)
    return options, command


@dataclass(frozen=True)
class Slice:
    """`gcloud` commands of a Cloud TPU slice: a queued resource with one node, or a TPU VM by itself.

    Args:
        direct: a TPU VM, not a queued resource.
        label: value of the slice's label `config-hash`.
    """

    name: str
    zone: str
    project: str | None
    accelerator: str
    runtime: str
    spot: bool
    direct: bool
    label: str

    def _gcloud(self, group: str, *words: str) -> list[str]:
        project = [f"--project={self.project}"] if self.project else []
        return ["gcloud", "compute", "tpus", group, *words, f"--zone={self.zone}", *project]

    @property
    def _group(self) -> str:
        return "tpu-vm" if self.direct else "queued-resources"

    def create(self) -> list[str]:
        node, version = ([], "--version") if self.direct else ([f"--node-id={self.name}"], "--runtime-version")
        machine = [f"--accelerator-type={self.accelerator}", f"{version}={self.runtime}"]
        spot = ["--spot"] if self.spot else []
        labels = f"--labels=app=rococo,config-hash={self.label}"
        return self._gcloud(self._group, "create", self.name, *node, *machine, *spot, labels)

    def describe(self) -> list[str]:
        state = "state" if self.direct else "state.state"
        return self._gcloud(self._group, "describe", self.name, f"--format=value({state})")

    def delete(self) -> list[str]:
        """Delete the slice with its node, and return when both are gone."""
        force = [] if self.direct else ["--force"]
        return self._gcloud(self._group, "delete", self.name, *force, "--quiet")

    def copy(self, source: str, target: str) -> list[str]:
        """Copy a file into the home folder of every host."""
        return self._gcloud("tpu-vm", "scp", source, f"{self.name}:{target}", "--worker=all")

    def ssh(self, worker: str, command: str) -> list[str]:
        return self._gcloud("tpu-vm", "ssh", self.name, f"--worker={worker}", f"--command={command}")

    def state(self) -> str | None:
        """Return the state of the slice as the cloud names it, None if there is no such slice.

        Raises:
            InputError: `gcloud` failed.
        """
        result = call(self.describe(), GCLOUD)
        if result.returncode == 0:
            return result.stdout.strip()
        if "NOT_FOUND" in result.stderr or "not found" in result.stderr:
            return None
        last_line = (result.stderr.strip() or "no output").splitlines()[-1]
        raise InputError(as_shell(self.describe()), f"exit code {result.returncode}", last_line, "the slice's state")


class Launch:
    """A run on a slice: its commands, and the order in which they run."""

    def __init__(self, options: argparse.Namespace, command: RunCommand):
        self.options, self.command, self.config = options, command, path_in_checkout(command.config)
        self.workdir = mounted_workdir(command, options.disk)
        self.result = f"{self.workdir}/{command.result}"
        self.slice = Slice(
            options.name or command.name,
            options.zone,
            options.project,
            options.accelerator,
            options.runtime,
            options.spot,
            options.direct,
            command.hash[:12],
        )
        self.archive = Path(tempfile.gettempdir()) / f"{command.name}.tar.gz"

    @property
    def script(self) -> str:
        return f"rococo/{self.command.name}/launch/tpu_host.sh"

    def copy(self) -> list[str]:
        return self.slice.copy(str(self.archive), self.archive.name)

    def start(self) -> list[str]:
        """Unpack the checkout and start the run on every host where it is not running."""
        folder = f"rococo/{self.command.name}"
        unpack = as_shell(["tar", "--extract", "--gzip", f"--file={self.archive.name}", f"--directory={folder}"])
        words = self.command.words(self.workdir, self.config)
        run = as_shell(["bash", self.script, "start", str(self.options.disk), str(self.options.timeout), *words])
        # Not while it runs: an editable install reads these files.
        idle = f'{{ kill -0 "$(cat {folder}/run.pid 2>/dev/null)" 2>/dev/null || {unpack}; }}'
        return self.slice.ssh("all", f"mkdir -p {folder} && {idle} && {run}")

    def follow(self) -> list[str]:
        return self.slice.ssh("0", as_shell(["bash", self.script, "follow", self.result]))

    def stop(self) -> list[str]:
        return self.slice.ssh("all", as_shell(["bash", self.script, "stop"]))

    def write_archive(self) -> None:
        with tarfile.open(self.archive, "w:gz", compresslevel=1) as archive:
            for name in COPIED:
                archive.add(CHECKOUT / name, name, filter=_without_caches)
            archive.add(CHECKOUT / self.config, self.config)

    def plan(self) -> list[str]:
        """Return the commands of `run` or `end` as lines of shell."""
        if self.options.stop:
            return [
                as_shell(self.stop()),
                "# until it has ended:",
                as_shell(self.follow()),
                as_shell(self.slice.delete()),
            ]
        again = (
            f"# where it was stopped, up to {self.options.restarts} times: the slice made anew if it is gone, and again"
        )
        return [
            "# is it there?",
            as_shell(self.slice.describe()),
            "# if not:",
            as_shell(self.slice.create()),
            f"# until it says {' or '.join(READY)}:",
            as_shell(self.slice.describe()),
            f"# the checkout, packed as {self.archive}: {', '.join(COPIED)}, {self.config}",
            as_shell(self.copy()),
            as_shell(self.start()),
            as_shell(self.follow()),
            again,
            *(["# kept"] if self.options.keep else ["# at the end:", as_shell(self.slice.delete())]),
        ]

    def run(self) -> int:
        """Runs to the end, restarting after preemption. Returns the run's exit code."""
        # Once, so that a restart runs the same code although the checkout has changed meanwhile.
        self.write_archive()
        code = STOPPED
        for restart in range(self.options.restarts + 1):
            if restart:
                log(f"stopped; restart {restart} of {self.options.restarts}")
            self.get_slice()
            if not self.run_on_hosts(self.copy()) or not self.run_on_hosts(self.start()):
                continue
            code = self.follow_run()
            if code not in (STOPPED, CONNECTION_LOST):
                break
        if self.options.keep:
            log(f"kept, and paid for until: {as_shell(self.slice.delete())}")
        else:
            call_or_refuse(self.slice.delete(), GCLOUD)
            log(f"{self.slice.name} is given back")
        log(f"result: {self.result} on {self.options.disk}" if code == 0 else f"the run ended with exit code {code}")
        return code

    def get_slice(self) -> None:
        """Create the slice, or wait for it; create it again after preemption."""
        logged, was_requested = None, False
        while (state := self.slice.state()) not in READY:
            if state != logged:
                log(f"{self.slice.name}: {state or 'not there'}")
                logged = state
            if state is None:
                call_or_refuse(self.slice.create(), GCLOUD)
                was_requested = True
            elif state == "FAILED" and was_requested:
                why = as_shell([word for word in self.slice.describe() if not word.startswith("--format")])
                raise InputError(self.slice.name, "state", "FAILED just after it was requested", f"ACTIVE; see {why}")
            elif state in LOST:
                call_or_refuse(self.slice.delete(), GCLOUD)
            else:
                time.sleep(self.options.poll)

    def follow_run(self) -> int:
        """Follow the run. Return its exit code, or STOPPED or CONNECTION_LOST if it should be started again."""
        for _ in range(10):
            code = subprocess.run(self.follow()).returncode
            if code != CONNECTION_LOST:
                # The exit code counts only while the slice is there: preemption may end the run in any way.
                return code if code in (0, STOPPED) or self.slice.state() in READY else STOPPED
            time.sleep(self.options.poll)
            if self.slice.state() not in READY:
                return STOPPED
            log("connection lost; following again")
        return CONNECTION_LOST

    def run_on_hosts(self, words: Sequence[str]) -> bool:
        """Run a command on the hosts. Return False if it failed because the slice is gone.

        Raises:
            InputError: the command failed twice on a slice that is there.
        """
        if subprocess.run(words).returncode == 0:
            return True
        if self.slice.state() in READY:
            call_or_refuse(words, GCLOUD)
            return True
        return False

    def end(self) -> None:
        """Stop the run, wait until it has saved, and delete the slice."""
        state = self.slice.state()
        if state is None:
            log(f"{self.slice.name} is not there")
            return
        if state in READY and subprocess.run(self.stop()).returncode == 0:
            subprocess.run(self.follow())
        call_or_refuse(self.slice.delete(), GCLOUD)
        log(f"{self.slice.name} is given back")


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def main(arguments: Sequence[str]) -> int:
    options, command = parse(arguments)
    launch = Launch(options, command)
    if options.dry_run:
        print("\n".join(launch.plan()))
        return 0
    if options.stop:
        launch.end()
        return 0
    try:
        return launch.run()
    except KeyboardInterrupt:
        log("no longer following; the slice and the run on it go on. The same command follows again, --stop ends both")
        return 130


if __name__ == "__main__":
    run_main(main)
