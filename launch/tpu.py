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
    own, forwarded = split_at_dashes(arguments)
    asked, command = parser.parse_args(own), read_run_command(forwarded)
    asked.disk = read_disk(asked.disk)
    command = command.on(asked.disk)
    return asked, command


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
        """Deletes the slice with its node, and returns when both are gone."""
        force = [] if self.direct else ["--force"]
        return self._gcloud(self._group, "delete", self.name, *force, "--quiet")

    def copy(self, source: str, target: str) -> list[str]:
        """Copies a file into the home folder of every host."""
        return self._gcloud("tpu-vm", "scp", source, f"{self.name}:{target}", "--worker=all")

    def ssh(self, worker: str, command: str) -> list[str]:
        return self._gcloud("tpu-vm", "ssh", self.name, f"--worker={worker}", f"--command={command}")

    def state(self) -> str | None:
        """State of the slice as the cloud names it; None where there is no such slice.

        Raises:
            InputError: `gcloud` failed.
        """
        done = call(self.describe(), GCLOUD)
        if done.returncode == 0:
            return done.stdout.strip()
        if "NOT_FOUND" in done.stderr or "not found" in done.stderr:
            return None
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise InputError(as_shell(self.describe()), f"exit code {done.returncode}", last, "the slice's state")


class Launch:
    """One run on one slice: its commands, and the order in which they run."""

    def __init__(self, asked: argparse.Namespace, command: RunCommand):
        self.asked, self.command, self.config = asked, command, path_in_checkout(command.config)
        self.workdir = mounted_workdir(command, asked.disk)
        self.result = f"{self.workdir}/{command.result}"
        self.slice = Slice(
            asked.name or command.name,
            asked.zone,
            asked.project,
            asked.accelerator,
            asked.runtime,
            asked.spot,
            asked.direct,
            command.hash[:12],
        )
        self.archive = Path(tempfile.gettempdir()) / f"{command.name}.tar.gz"

    @property
    def script(self) -> str:
        return f"rococo/{self.command.name}/launch/tpu_host.sh"

    def copy(self) -> list[str]:
        return self.slice.copy(str(self.archive), self.archive.name)

    def start(self) -> list[str]:
        """Unpacks the checkout and starts the run on every host where it is not running."""
        folder = f"rococo/{self.command.name}"
        unpack = as_shell(["tar", "--extract", "--gzip", f"--file={self.archive.name}", f"--directory={folder}"])
        words = self.command.words(self.workdir, self.config)
        run = as_shell(["bash", self.script, "start", str(self.asked.disk), str(self.asked.timeout), *words])
        # Not while it runs: an editable install reads these files.
        idle = f'{{ kill -0 "$(cat {folder}/run.pid 2>/dev/null)" 2>/dev/null || {unpack}; }}'
        return self.slice.ssh("all", f"mkdir -p {folder} && {idle} && {run}")

    def follow(self) -> list[str]:
        return self.slice.ssh("0", as_shell(["bash", self.script, "follow", self.result]))

    def stop(self) -> list[str]:
        return self.slice.ssh("all", as_shell(["bash", self.script, "stop"]))

    def write_archive(self) -> None:
        with tarfile.open(self.archive, "w:gz") as archive:
            for name in COPIED:
                archive.add(CHECKOUT / name, name, filter=_without_caches)
            archive.add(CHECKOUT / self.config, self.config)

    def plan(self) -> list[str]:
        """Lists the commands of `run` or `end` as lines of shell."""
        if self.asked.stop:
            return [
                as_shell(self.stop()),
                "# until it has ended:",
                as_shell(self.follow()),
                as_shell(self.slice.delete()),
            ]
        again = (
            f"# where it was stopped, up to {self.asked.restarts} times: the slice made anew if it is gone, and again"
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
            *(["# kept"] if self.asked.keep else ["# at the end:", as_shell(self.slice.delete())]),
        ]

    def run(self) -> int:
        """Runs to the end, restarting after preemption. Returns the run's exit code."""
        code = STOPPED
        for restart in range(self.asked.restarts + 1):
            if restart:
                log(f"stopped; restart {restart} of {self.asked.restarts}")
            self.get_slice()
            self.write_archive()
            if not self.run_on_hosts(self.copy()) or not self.run_on_hosts(self.start()):
                continue
            code = self.follow_run()
            if code not in (STOPPED, CONNECTION_LOST):
                break
        if self.asked.keep:
            log(f"kept, and paid for until: {as_shell(self.slice.delete())}")
        else:
            call_or_refuse(self.slice.delete(), GCLOUD)
            log(f"{self.slice.name} is given back")
        log(f"result: {self.result} on {self.asked.disk}" if code == 0 else f"the run ended with exit code {code}")
        return code

    def get_slice(self) -> None:
        """Creates the slice, or waits for it; creates it again after preemption."""
        logged, asked_for = None, False
        while (state := self.slice.state()) not in READY:
            if state != logged:
                log(f"{self.slice.name}: {state or 'not there'}")
                logged = state
            if state is None:
                call_or_refuse(self.slice.create(), GCLOUD)
                asked_for = True
            elif state == "FAILED" and asked_for:
                why = as_shell([word for word in self.slice.describe() if not word.startswith("--format")])
                raise InputError(self.slice.name, "state", "FAILED just after it was asked for", f"ACTIVE; see {why}")
            elif state in LOST:
                call_or_refuse(self.slice.delete(), GCLOUD)
            else:
                time.sleep(self.asked.poll)

    def follow_run(self) -> int:
        """Follows the run. Returns its exit code, or STOPPED or CONNECTION_LOST where it should be started again."""
        for _ in range(10):
            code = subprocess.run(self.follow()).returncode
            if code != CONNECTION_LOST:
                # The exit code counts only while the slice is there: preemption may end the run in any way.
                return code if code in (0, STOPPED) or self.slice.state() in READY else STOPPED
            time.sleep(self.asked.poll)
            if self.slice.state() not in READY:
                return STOPPED
            log("connection lost; following again")
        return CONNECTION_LOST

    def run_on_hosts(self, words: Sequence[str]) -> bool:
        """Runs a command on the hosts. Returns False where it failed because the slice is gone.

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
        """Stops the run, waits until it has saved, and deletes the slice."""
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
    asked, command = parse(arguments)
    launch = Launch(asked, command)
    if asked.dry_run:
        print("\n".join(launch.plan()))
        return 0
    if asked.stop:
        launch.end()
        return 0
    try:
        return launch.run()
    except KeyboardInterrupt:
        log("no longer following; the slice and the run on it go on. The same command follows again, --stop ends both")
        return 130


if __name__ == "__main__":
    run_main(main)
