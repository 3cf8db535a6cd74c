"""What the engines of `launch/` run on each host: the command and the environment, here for processes of one machine.

The values that an engine sets come from its documentation, or from its own dry run; each function names its source.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.launchers import LAUNCH, dry
from tests.support.processes import Process, free_port


@dataclass(frozen=True)
class Job:
    """The processes of a run, and whether the engine starts the run again after these exit codes."""

    processes: list[Process]
    restarts: Callable[[Sequence[int]], bool]


def stand_in(folder: Path, name: str, lines: str) -> dict[str, str]:
    """Put a shell script into the folder as a program, and return an environment in which it is found first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
    (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def programs_of_the_image(disk: Path, rococo: Sequence[str]) -> dict[str, str]:
    """Return an environment in which `until_stopped` and `rococo` (these words) are programs, as in the image."""
    stand_in(disk / "bin", "until_stopped", f'exec sh {shlex.quote(str(LAUNCH / "until_stopped.sh"))} "$@"')
    return stand_in(disk / "bin", "rococo", f'exec {shlex.join(rococo)} "$@"')


def read_file(name: str, disk: Path) -> str:
    """Return a file of `launch/` that mounts `disk` and has a free port."""
    return (LAUNCH / name).read_text().replace("/mnt/rococo", str(disk)).replace(":1234", f":{free_port()}")


def jobset(accelerator: str, words: Sequence[str], count: int, disk: Path, rococo: Sequence[str]) -> Job:
    """Return the pods of the JobSet of `launch/jobset.yaml` for GPUs or TPUs.

    Pods have the host name JOBSET-REPLICATED_JOB-JOB-POD in the domain JOBSET (jobset.sigs.k8s.io, "Networking"), and,
    as JobSet makes its jobs indexed, the annotation batch.kubernetes.io/job-completion-index (kubernetes.io, "Jobs").
    GKE sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES (cloud.google.com, "TPUs in GKE"). A job with `backoffLimit: 0`
    fails with its first pod, and JobSet starts all again, unless a rule of the job's policy matches.
    """
    (document,) = [
        each
        for each in yaml.safe_load_all(read_file("jobset.yaml", disk))
        if each["metadata"]["labels"] == {"accelerator": accelerator}
    ]
    (replicated,) = document["spec"]["replicatedJobs"]
    job, name = replicated["template"]["spec"], document["metadata"]["name"]
    (container,) = job["template"]["spec"]["containers"]
    variables = {entry["name"]: entry for entry in container["env"]}
    first_host = f"{name}-{replicated['name']}-0-0.{name}"
    by_annotation = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str}
    processes = []
    for index in range(count):
        environment = programs_of_the_image(disk, rococo) | {"JOB_COMPLETION_INDEX": str(index)}
        for key, entry in variables.items():
            source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[key] = by_annotation[source](index) if source else entry["value"]
        if accelerator == "gpu":
            assert environment["ROCOCO_PROCESSES"] == str(job["completions"])
            host, port = environment["ROCOCO_COORDINATOR"].split(":")
            assert host == first_host
            environment |= {"ROCOCO_COORDINATOR": f"localhost:{port}", "ROCOCO_PROCESSES": str(count)}
        else:
            # One slice, by the variables of several: JAX then reads no metadata server. JAX_FORCE_TPU_INIT is its
            # switch for a host without chips.
            environment |= {"MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0"}
            environment |= {"MEGASCALE_COORDINATOR_ADDRESS": "localhost"}
            environment |= {"TPU_WORKER_ID": str(index), "TPU_WORKER_HOSTNAMES": ",".join(["localhost"] * count)}
            environment |= {"JAX_FORCE_TPU_INIT": "1", "TPU_SKIP_MDS_QUERY": "1"}
        processes.append(([*container["command"], *(words or container["args"])], environment))
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["operator"] == "In"
    final = set(rule["onExitCodes"]["values"])
    return Job(processes, lambda codes: any(codes) and not final & set(codes))


def xpk(words: Sequence[str], count: int, disk: Path, rococo: Sequence[str]) -> Job:
    """Return the containers that `xpk workload create` runs on GPU nodes for the command of `launch/xpk.sh`.

    The variables and the restarts after 42 and 127 to 255 are those of a dry run of xpk 1.16.0, which also copies the
    command into YAML between double quotes.
    """
    record = stand_in(disk / "xpk", "xpk", f"for word do echo \"$word\"; done > '{disk}/words'")
    (disk / "xpk.sh").write_text(read_file("xpk.sh", disk))
    options = ["--cluster", "c", "--workload", "w", "--device-type", "h100-mega-80gb-8", "--num-nodes", str(count)]
    subprocess.run(["sh", disk / "xpk.sh", *options, "--", *words], env=record, check=True)
    recorded = (disk / "words").read_text().splitlines()
    assert recorded[:2] == ["workload", "create"] and recorded[-2] == "--command" and not set('"\\') & set(recorded[-1])
    assert recorded[-2 - len(options) : -2] == options
    codes_given = recorded[recorded.index("--restart-on-exit-codes") + 1].split(",")
    again = {42, *range(127, 256), *map(int, codes_given)}
    group = {"NNODES": str(count), "JAX_COORDINATOR_ADDRESS": "localhost"}
    processes = [
        (["bash", "-c", recorded[-1]], programs_of_the_image(disk, rococo) | group | {"NODE_RANK": str(number)})
        for number in range(count)
    ]
    return Job(processes, lambda codes: any(codes) and {code for code in codes if code} <= again)


def skypilot(words: Sequence[str], count: int, disk: Path, rococo: Sequence[str]) -> Job:
    """Return what SkyPilot runs on each node for `launch/skypilot.yaml`, in the folder of the checkout.

    Variables: docs.skypilot.co, "Distributed jobs"; recovery: "Managed jobs", by any exit code of the list.
    """
    task = yaml.safe_load(read_file("skypilot.yaml", disk))
    stand_in(disk / "home" / "rococo" / "bin", "rococo", f'exec {shlex.join(rococo)} "$@"')
    home = os.environ | {"HOME": str(disk / "home")}
    home |= task["envs"] | {"SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * count), "SKYPILOT_NUM_NODES": str(count)}
    home |= {"RUN": " ".join(words)} if words else {}
    processes = [(["bash", "-c", task["run"]], home | {"SKYPILOT_NODE_RANK": str(rank)}) for rank in range(count)]
    recovered = set(task["resources"]["job_recovery"]["recover_on_exit_codes"])
    return Job(processes, lambda codes: bool(recovered & set(codes)))


def slurm(words: Sequence[str], count: int, disk: Path, rococo: Sequence[str]) -> Job:
    """Return the tasks that `srun` starts from the batch script of `launch/slurm.py`: SLURM_PROCID numbers them.

    The script queues the job again after these exit codes while there is no model; SLURM does after the loss of a node.
    """
    port = next(port for port in iter(free_port, None) if 20000 <= port < 40000)
    python = disk / "bin" / "python"
    stand_in(python.parent, "python", f'shift 2\nexec {shlex.join(rococo)} "$@"')
    stand_in(disk / "slurm", "scontrol", "echo localhost")
    write = f"import json, os, sys; json.dump([dict(os.environ), sys.argv[1:]], open({str(disk / 'task')!r}, 'w'))"
    environment = stand_in(disk / "slurm", "srun", f'exec {shlex.join([sys.executable, "-c", write])} "$@"')
    environment |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": str(port - 20000)}
    script = dry("--nodes", "1", "--gpus", str(count), "--python", str(python), train=list(words))
    subprocess.run(["bash"], input=script, text=True, env=environment, check=True)
    task_environment, task = json.loads((disk / "task").read_text())
    assert task[0] == "--kill-on-bad-exit=1"
    return Job(
        [(task[1:], task_environment | {"SLURM_PROCID": str(number)}) for number in range(count)], {0, 143}.issuperset
    )
