"""Program that runs a Ray cluster on the loopback interface, with a head node and two compute nodes.

Each node has a different host name, by which llmrl distinguishes machines; setting host names requires root. Lines of
standard input are commands: `remove <host>` kills a node as a power failure does, `add <host>` starts one. The program
prints a line after each command and ends at the end of standard input.
"""

import ctypes
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

SYSTEM = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # drivers use the loopback interface, too
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",  # Ray's processes start slowly on a loaded machine
    "RAY_worker_niceness": "0",  # by default workers have a low priority
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
HOSTS = ("ray-1", "ray-2")
CLONE_NEWUTS = 0x04000000


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def disable_node_agents() -> None:
    """Start nodes without waiting for their agents, whose timeout of 15 s is too short on a loaded machine."""
    from ray import _raylet
    from ray._private.node import Node

    start_raylet = Node.start_raylet

    def start(node, *arguments, **options):
        port = node._ray_params.runtime_env_agent_port = find_free_port()
        _raylet.persist_port(node.get_session_dir_path(), node._node_id, _raylet.RUNTIME_ENV_AGENT_PORT_NAME, port)
        for name in ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN"):
            _raylet.persist_port(node.get_session_dir_path(), node._node_id, getattr(_raylet, f"{name}_PORT_NAME"), -1)
        return start_raylet(node, *arguments, **options)

    Node.start_raylet = start


def main() -> None:
    temporary = tempfile.mkdtemp(prefix="ray_", dir="/tmp")  # names of sockets must be short
    os.environ["RAY_TMPDIR"] = temporary
    Path(temporary, "ray").mkdir()
    from ray.cluster_utils import Cluster

    common = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20, "memory": 4_000_000_000}
    disable_node_agents()
    head_only = {"temp_dir": temporary, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args={**common, **head_only, "num_cpus": 0})
    nodes = {}

    def add(host: str) -> None:
        assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0, "host names can be set by root only"
        socket.sethostname(host)
        nodes[host] = cluster.add_node(num_cpus=1, **common)

    try:
        for host in HOSTS:
            add(host)
        print("ready", cluster.address, flush=True)
        for line in sys.stdin:
            verb, host = line.split()
            if verb == "remove":
                cluster.remove_node(nodes.pop(host), allow_graceful=False)
            else:
                add(host)
            print("done", flush=True)
    finally:
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    os.environ.update(SYSTEM)
    main()
