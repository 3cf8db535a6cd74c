"""Trains on Google Kubernetes Engine, on TPU slices or GPU nodes: fills in `jobset.yaml` and applies it.

    python launch/gke.py --tpu tpu-v5-lite-podslice --topology 4x4 --disk gs://my-bucket --image IMAGE --spot \\
        -- train --config configs/coco_finetune.py --config.batch_size=32768
    python launch/gke.py --gpu nvidia-h100-80gb --hosts 4 --per-host 8 --disk claim:my-share --image IMAGE \\
        -- train --config configs/coco_finetune.py

launch/Dockerfile makes the image, with the target `tpu` or `cuda`:

    docker build --file launch/Dockerfile --target cuda --tag IMAGE . && docker push IMAGE

The cluster has the JobSet controller (0.6 or newer) and the nodes. `--networks` has NCCL send by GPUDirect over the
networks that launch/gpudirect.py lists. Names come from the config's hash: the same command again changes nothing.
After the loss of a pod, all pods restart from the last checkpoint.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from command import (
    CACHE_VARIABLE,
    MOUNT,
    MOUNTED_CACHE,
    Disk,
    InputError,
    RunCommand,
    as_shell,
    call_or_refuse,
    log,
    mounted_workdir,
    positive,
    read_disk,
    read_run_command,
    run_main,
    split_at_dashes,
)
from gpudirect import HOST_NETWORK, PodNetwork, gpudirect

KUBECTL = "kubectl, with the cluster's credentials"
HERE = Path(__file__).resolve().parent
PORT = {"google.com/tpu": 8482, "nvidia.com/gpu": 1234}
NODE = "cloud.google.com/gke-"


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, RunCommand]:
    parser = argparse.ArgumentParser(
        prog="launch/gke.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- train|sweep --config FILE [--workdir DIR] [--config.key=value ...]",
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--tpu", metavar="TYPE", help="as the node label gke-tpu-accelerator names it")
    kind.add_argument("--gpu", metavar="TYPE", help="as the node label gke-accelerator names it")
    parser.add_argument("--topology", help="of a TPU slice, as 4x4: gives the number of hosts")
    parser.add_argument("--slices", type=positive, default=1, help="TPU slices, joined over the network (default 1)")
    parser.add_argument("--hosts", type=positive, help="GPU nodes")
    parser.add_argument("--per-host", type=positive, help="chips of a node (default: 4 TPUs, 8 GPUs)")
    parser.add_argument("--image", required=True, help="made by launch/Dockerfile (above) and pushed where the nodes "
                        "can pull it")  # fmt: skip
    parser.add_argument("--networks", metavar="A,B", help="the cluster's networks of a GPU node's further cards, in "
                        "order, for GPUDirect (default: none; NCCL goes over the node's own)")  # fmt: skip
    parser.add_argument("--disk", required=True, help="gs://BUCKET[/FOLDER], HOST:/SHARE or claim:NAME: the workdir's")
    parser.add_argument("--spot", action="store_true", help="on spot nodes")
    parser.add_argument("--restarts", type=positive, default=20, help="of the whole set (default 20)")
    parser.add_argument("--timeout", type=positive, default=300, help="seconds that processes wait for one another")
    parser.add_argument("--service-account", help="Kubernetes account that may use the bucket")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--context", help="of kubectl; the current one by default")
    parser.add_argument("--stop", action="store_true", help="delete this run's JobSet")
    parser.add_argument("--dry-run", action="store_true", help="print the manifest; on stderr what would be called")
    own, forwarded = split_at_dashes(arguments)
    asked, command = parser.parse_args(own), read_run_command(forwarded)
    asked.disk = read_disk(asked.disk, ("bucket", "claim", "share"))
    command = command.on(asked.disk)
    asked.per_host = asked.per_host or (4 if asked.tpu else 8)
    asked.hosts = hosts_of(asked)
    asked.network = network_of(asked)
    return asked, command


def network_of(asked: argparse.Namespace) -> PodNetwork:
    """How pods talk: TPUs of one slice over their own links, slices and GPU nodes over the hosts' or by GPUDirect."""
    if asked.networks:
        return gpudirect(asked.gpu or asked.tpu, asked.networks.split(","))
    return HOST_NETWORK if (asked.slices if asked.tpu else asked.hosts) > 1 else PodNetwork()


def hosts_of(asked: argparse.Namespace) -> int:
    """Number of hosts of a slice, or of GPU nodes.

    Raises:
        InputError: the options that determine it are missing or contradict one another.
    """
    if asked.gpu:
        if asked.topology or asked.slices > 1:
            raise InputError("command line", "--topology or --slices", "given beside --gpu", "--hosts")
        if asked.hosts is None:
            raise InputError("command line", "--hosts", "nothing", "the number of GPU nodes")
        return asked.hosts
    if not re.fullmatch(r"\d+(x\d+){1,2}", asked.topology or ""):
        raise InputError("command line", "--topology", repr(asked.topology), "the slice's shape, as 4x4 or 2x2x4")
    chips = math.prod(map(int, asked.topology.split("x")))
    hosts, rest = divmod(chips, asked.per_host)
    if rest or not hosts or asked.hosts not in (None, hosts):
        found = f"{chips} chips, {asked.per_host} a host" + (f", {asked.hosts} hosts" if asked.hosts else "")
        raise InputError("command line", "--topology", found, "a whole number of hosts, which --hosts need not repeat")
    return hosts


def render(asked: argparse.Namespace, command: RunCommand) -> str:
    """Renders the manifest: a ConfigMap with config and script, and the JobSet."""
    resource = "google.com/tpu" if asked.tpu else "nvidia.com/gpu"
    workdir = mounted_workdir(command, asked.disk)
    train = ["/bin/sh", "/launch/until_stopped.sh", "rococo", *command.words(workdir, "/launch/config.py")]
    network = asked.network
    if network.profile:
        train = ["/bin/bash", "-c", 'source "$0" && exec "$@"', network.profile, *train]
    annotations = {"gke-gcsfuse/volumes": "true"} if asked.disk.kind == "bucket" else {}
    return Template((HERE / "jobset.yaml").read_text(encoding="utf-8")).substitute(
        name=command.name,
        hash=scalar(command.hash),
        short_hash=scalar(command.hash[:12]),
        config=block(read_config_text(command.config), 4),
        until_stopped=block((HERE / "until_stopped.sh").read_text(encoding="utf-8"), 4),
        # A slice is one node pool, and all its hosts belong to one job.
        exclusive=mapping({"alpha.jobset.sigs.k8s.io/exclusive-topology": NODE + "nodepool"} if asked.tpu else {}, 4),
        restarts=asked.restarts,
        slices=asked.slices,
        hosts=asked.hosts,
        pod_annotations=mapping(annotations | network.annotations, 14),
        pod_network=mapping(network.pod, 12),
        service_account=mapping(
            {"serviceAccountName": asked.service_account} if asked.service_account else {},
            12,
        ),
        node_selector=mapping(node_selector(asked), 14),
        tolerations=sequence(tolerations(resource, asked.spot), 12),
        image=scalar(asked.image),
        command=sequence([literal(word) for word in train], 14),
        environment=sequence(environment(asked, command), 14),
        port=PORT[resource],
        resource=resource,
        per_host=asked.per_host,
        mount=MOUNT,
        disk=volume(asked.disk, "hostNetwork" in network.pod),
        sidecars=mapping({"initContainers": network.sidecars} if network.sidecars else {}, 12),
        container_security=mapping({"securityContext": network.security} if network.security else {}, 14),
        network_mounts=sequence(network.mounts, 14),
        network_volumes=sequence(network.volumes, 12),
    )


def node_selector(asked: argparse.Namespace) -> dict[str, str]:
    chips = {"tpu-accelerator": asked.tpu, "tpu-topology": asked.topology} if asked.tpu else {"accelerator": asked.gpu}
    return {NODE + name: value for name, value in chips.items()} | ({NODE + "spot": "true"} if asked.spot else {})


def tolerations(resource: str, spot: bool) -> list[dict]:
    tolerated = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if spot:
        tolerated.append({"key": NODE + "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return tolerated


def environment(asked: argparse.Namespace, command: RunCommand) -> list[dict]:
    """Variables of `rococo_jax.processes`. On TPU, JAX finds the processes by variables that GKE sets."""
    common = {"ROCOCO_TIMEOUT": str(asked.timeout), CACHE_VARIABLE: MOUNTED_CACHE, **asked.network.variables}
    common = [{"name": name, "value": value} for name, value in common.items()]
    if asked.tpu:
        return [{"name": "ROCOCO_COORDINATOR", "value": "auto"}, *common]
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    first = f"{command.name}-workers-0-0.{command.name}"
    return [
        {"name": "ROCOCO_COORDINATOR", "value": f"{first}:{PORT['nvidia.com/gpu']}"},
        {"name": "ROCOCO_PROCESSES", "value": str(asked.hosts)},
        {"name": "ROCOCO_PROCESS", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        *common,
    ]


def volume(disk: Disk, host_network: bool) -> str:
    """The volume of the disk, as one line of YAML."""
    if disk.kind == "claim":
        return "persistentVolumeClaim: " + scalar({"claimName": disk.what})
    if disk.kind == "share":
        return "nfs: " + scalar({"server": disk.what, "path": disk.folder})
    attributes = {"bucketName": disk.what, "mountOptions": ",".join(disk.bucket_options)}
    if host_network:
        # Else the mount has the node's account, not the pod's (docs/authentication.md of the gcsfuse CSI driver).
        attributes["hostNetworkPodKSA"] = "true"
    return "csi: " + scalar({"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes})


def literal(word: str) -> str:
    """Escapes a word of a pod's command: Kubernetes expands `$(NAME)`, and reads `$$` as a dollar."""
    return word.replace("$", "$$")


def scalar(value: object) -> str:
    """Renders a value as JSON, which is valid YAML on one line."""
    return json.dumps(value, ensure_ascii=False)


def sequence(items: Sequence[object], indent: int) -> str:
    return "".join(f"\n{' ' * indent}- {scalar(item)}" for item in items)


def mapping(items: Mapping[str, str], indent: int) -> str:
    return "".join(f"\n{' ' * indent}{key}: {scalar(value)}" for key, value in items.items())


def read_config_text(path: Path) -> str:
    """A config file as it can stand in a YAML block.

    Raises:
        InputError: it is not UTF-8, or has characters that YAML knows as line ends or not at all.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InputError(path, "encoding", f"bytes that are not UTF-8 at offset {error.start}", "a text file") from None
    text = text.replace("\r\n", "\n")
    for place, letter in enumerate(text):
        if letter in "\x7f\x85\u2028\u2029\ufeff" or (letter < " " and letter not in "\t\n"):
            found = f"the character U+{ord(letter):04X} at offset {place}"
            raise InputError(path, "text", found, "printable characters, tabs and line feeds")
    return text


def block(text: str, indent: int) -> str:
    """Renders text as a YAML block, indented."""
    lines = text.rstrip("\n").split("\n")
    return f"|{indent - 2}\n" + "\n".join(" " * indent + line if line else "" for line in lines)


def main(arguments: Sequence[str]) -> int:
    asked, command = parse(arguments)
    manifest = render(asked, command)
    kubectl = ["kubectl", *([f"--context={asked.context}"] if asked.context else []), f"--namespace={asked.namespace}"]
    apply = [*kubectl, "apply", "--filename=-"]
    delete = [*kubectl, "delete", "--ignore-not-found", f"jobset/{command.name}", f"configmap/{command.name}"]
    if asked.dry_run:
        print(f"# would run: {as_shell(delete if asked.stop else apply)}", file=sys.stderr)
        if not asked.stop:
            print(manifest, end="")
        return 0
    if asked.stop:
        print(call_or_refuse(delete, KUBECTL), end="")
        return 0
    print(call_or_refuse(apply, KUBECTL, manifest), end="")
    label = f"config-hash={command.hash[:12]},batch.kubernetes.io/job-completion-index=0"
    log(f"logs of the first host: {as_shell([*kubectl, 'logs', '--follow', '--selector=' + label])}")
    log(f"to stop and free the nodes: {as_shell(delete)}")
    return 0


if __name__ == "__main__":
    run_main(main)
