"""GPUDirect on GKE's GPU nodes: a pod's networks, the daemon beside the run, and NCCL's settings.

| node label            | machine  | stack | networks | NCCL's settings come from             |
| nvidia-h100-80gb      | A3 High  | TCPX  | 4        | variables of the release notes        |
| nvidia-h100-mega-80gb | A3 Mega  | TCPXO | 8        | the profile that the installer leaves |
| nvidia-h200-141gb     | A3 Ultra | RDMA  | 8        | the script that the installer leaves  |
| nvidia-b200           | A4       | RDMA  | 8        | the script that the installer leaves  |

Without it NCCL goes over the node's first network card. The cluster has these networks as `Network` objects, whose
names are its own, and Google's installer of the NCCL plugin as a DaemonSet (for TCPX and TCPXO also its device
injector). All of it follows github.com/GoogleCloudPlatform/container-engine-accelerators and was never run here:

    TCPX     gpudirect-tcpx/README.md (release of 22 June 2026), nccl-test-latest.yaml
    TCPXO    gpudirect-tcpxo/README.md (release of 9 January 2026), nccl-test-latest.yaml
    RDMA     gpudirect-rdma/nccl-test.yaml (A3 Ultra), nccl-test-a4.yaml (A4)
    both TCP stacks: gpudirect-tcpxo/best-practice.md (the daemon as a sidecar ends with the run; Kubernetes 1.29)

Those examples run as root, with the plugins' files and sockets owned by root; so does the run beside GPUDirect.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from command import InputError

_LIBRARIES, _NODE = "/usr/local/nvidia/lib64", "/home/kubernetes/bin"
_REGISTRY = "us-docker.pkg.dev/gce-ai-infra"
_GPUS = [f"/dev/nvidia{number}" for number in range(8)] + ["/dev/nvidiactl", "/dev/nvidia-uvm"]


@dataclass(frozen=True)
class Stack:
    """One of the three GPUDirect stacks.

    Args:
        networks: how many a node has beside its own.
        first: number of the interface of the first of them.
        mounts: path in the run's container -> path on the node.
        variables: of the run's container.
        profile: script of the node that exports NCCL's variables; "" where they are in `variables`.
        capabilities: of the run's container.
        daemon: the sidecar, without its mounts; empty for none.
        daemon_mounts: path in the sidecar -> path on the node.
        devices: of the node that the sidecar gets from the device injector.
    """

    networks: int
    first: int
    mounts: dict[str, str]
    variables: dict[str, str]
    profile: str = ""
    capabilities: tuple[str, ...] = ()
    daemon: dict[str, Any] = field(default_factory=dict)
    daemon_mounts: dict[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()


_TCPX = Stack(
    networks=4,
    first=1,
    # NCCL's plugin looks for the daemon's socket in /tmp.
    mounts={_LIBRARIES: f"{_NODE}/nvidia/lib64", "/tmp": "/run/tcpx"},
    variables={
        "LD_LIBRARY_PATH": _LIBRARIES,
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_ALGO": "Ring,Tree",
        "NCCL_PROTO": "Simple",
        "NCCL_CROSS_NIC": "0",
        "NCCL_NET_GDR_LEVEL": "PIX",
        "NCCL_P2P_PXN_LEVEL": "0",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
        "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
        "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
        "NCCL_P2P_NET_CHUNKSIZE": "524288",
        "NCCL_P2P_PCI_CHUNKSIZE": "524288",
        "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
        "NCCL_BUFFSIZE": "4194304",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_SOCKET_NTHREADS": "1",
        "NCCL_GPUDIRECTTCPX_TX_BINDINGS": "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177",
        "NCCL_GPUDIRECTTCPX_RX_BINDINGS": "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191",
        "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
    },
    capabilities=("IPC_LOCK",),
    daemon={
        "name": "tcpx-daemon",
        "image": f"{_REGISTRY}/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.15",
        "command": [
            *("/tcpgpudmarxd/build/app/tcpgpudmarxd", "--gpu_nic_preset", "a3vm", "--gpu_shmem_type", "fd"),
            *("--uds_path", "/run/tcpx", "--setup_param", '\\"--verbose 128 2 0 \\"'),
        ],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    },
    daemon_mounts={
        **{_LIBRARIES: f"{_NODE}/nvidia/lib64", "/run/tcpx": "/run/tcpx"},
        **{"/hostsysfs": "/sys", "/hostprocsysfs": "/proc/sys"},
    },
    devices=tuple(_GPUS),
)
_TCPXO = Stack(
    networks=8,
    first=1,
    mounts={_LIBRARIES: f"{_NODE}/nvidia/lib64", "/dev/aperture_devices": "/dev/aperture_devices"},
    variables={
        **{"LD_LIBRARY_PATH": _LIBRARIES, "NCCL_LIB_DIR": _LIBRARIES},
        "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
    },
    profile=f"{_LIBRARIES}/nccl-env-profile.sh",
    daemon={
        "name": "tcpxo-daemon",
        "image": f"{_REGISTRY}/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21",
        "command": ["/bin/sh", "-c"],
        "args": [
            "set -ex; chmod 755 /fts/entrypoint_rxdm_container.sh; /fts/entrypoint_rxdm_container.sh --num_hops=2"
        ],
        "securityContext": {"capabilities": {"add": ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"]}},
    },
    daemon_mounts={_LIBRARIES: f"{_NODE}/nvidia/lib64", "/hostsysfs": "/sys", "/hostprocsysfs": "/proc/sys"},
    devices=(*_GPUS, "/dev/dmabuf_import_helper"),
)
_RDMA = Stack(
    networks=8,
    first=2,
    mounts={"/usr/local/nvidia": f"{_NODE}/nvidia", "/usr/local/gib": f"{_NODE}/gib"},
    variables={"LD_LIBRARY_PATH": _LIBRARIES},
    profile="/usr/local/gib/scripts/set_nccl_env.sh",
)
STACKS = {
    "nvidia-h100-80gb": _TCPX,
    "nvidia-h100-mega-80gb": _TCPXO,
    "nvidia-h200-141gb": _RDMA,
    "nvidia-b200": _RDMA,
}


@dataclass(frozen=True)
class PodNetwork:
    """What a pod's network asks of its manifest, in Kubernetes' words; all of it is empty on the cluster's network."""

    pod: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    security: dict[str, Any] = field(default_factory=dict)
    mounts: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    sidecars: tuple[dict[str, Any], ...] = ()
    profile: str = ""


# As in GKE's examples of TPU Multislice: the traffic between slices without the detour through the pod's own network.
HOST_NETWORK = PodNetwork(pod={"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"})


def gpudirect(gpu: str, networks: Sequence[str]) -> PodNetwork:
    """The network of a pod whose GPUs send over `networks`, named as the cluster's `Network` objects, in their order.

    Raises:
        InputError: no stack is documented for these GPUs, or it needs another number of networks.
    """
    if gpu not in STACKS:
        raise InputError("command line", "--networks", f"given for {gpu}", f"a GPU of {', '.join(STACKS)}")
    stack = STACKS[gpu]
    if len(set(networks)) != stack.networks or len(networks) != stack.networks:
        found = f"{len(networks)} names: {','.join(networks)}"
        raise InputError("command line", "--networks", found, f"{stack.networks} different ones for {gpu}")
    interfaces = [{"interfaceName": "eth0", "network": "default"}]
    interfaces += [
        {"interfaceName": f"eth{number}", "network": name} for number, name in enumerate(networks, stack.first)
    ]
    annotations = {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(interfaces),
    }
    sidecars = ()
    if stack.daemon:
        annotations[f"devices.gke.io/container.{stack.daemon['name']}"] = "".join(
            f"- path: {path}\n" for path in stack.devices
        )
        # A sidecar that Kubernetes stops when the run has ended.
        daemon = {**stack.daemon, "restartPolicy": "Always", "volumeMounts": _mounts(stack.daemon_mounts)}
        sidecars = ({**daemon, "env": [{"name": "LD_LIBRARY_PATH", "value": _LIBRARIES}]},)
    add = {"capabilities": {"add": list(stack.capabilities)}} if stack.capabilities else {}
    places = dict.fromkeys([*stack.mounts.values(), *stack.daemon_mounts.values()])
    return PodNetwork(
        annotations=annotations,
        variables=stack.variables,
        security={"runAsUser": 0, **add},
        mounts=tuple(_mounts(stack.mounts)),
        volumes=tuple({"name": _volume(path), "hostPath": {"path": path}} for path in places),
        sidecars=sidecars,
        profile=stack.profile,
    )


def _mounts(places: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": _volume(of_node), "mountPath": path} for path, of_node in places.items()]


def _volume(path: str) -> str:
    return "node" + path.replace("/", "-").replace("_", "-")
