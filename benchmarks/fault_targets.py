"""What benchmarks/faults.py disturbs beside `dvc repro`, run in the copy: two Ray nodes, an experiment in DVC's queue.

python -m benchmarks.fault_targets cluster PORT     until the first node dies; the second is replaced
python -m benchmarks.fault_targets queue            until the experiment has succeeded and is applied, else exit code 1
"""

import subprocess
import sys
import time
from typing import Any

NAME = "kept"  # of the experiment
OVER = ("Success", "Failed", "")  # states, the last where the queue does not know it


def cluster(port: int) -> None:
    """Nodes of one core, as a user starts them, on 127.0.0.1 alone."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "memory": 2 * 2**30, "object_store_memory": 10**8}
    made = Cluster(initialize_head=True, head_node_args={**node, "gcs_server_port": port, "include_dashboard": False})
    second = made.add_node(**node)
    while made.head_node and made.head_node.remaining_processes_alive():
        if not second.remaining_processes_alive():
            made.remove_node(second, allow_graceful=False)
            second = made.add_node(**node)
        time.sleep(1)


def dvc(*command: str) -> str:
    """What DVC prints."""
    return subprocess.run([sys.executable, "-m", "dvc", *command], stdout=subprocess.PIPE, text=True, check=False).stdout


def state() -> str:
    """Of the experiment, in DVC's word."""
    return next((line.split()[-1] for line in dvc("queue", "status").splitlines() if NAME in line), "")


def queue() -> None:
    """As a user would: queue it unless it waits or runs, start the queue's worker, look again and again."""
    if state() in ("Failed", ""):
        dvc("queue", "remove", "--failed")
        dvc("exp", "run", "--queue", "--pull", "--name", NAME)
    while (found := state()) not in OVER:
        dvc("queue", "start")
        time.sleep(3)
    dvc("pull", "weights.dvc")  # else `apply` fails in the end
    sys.exit(found != "Success" or subprocess.run([sys.executable, "-m", "dvc", "exp", "apply", NAME], check=False).returncode)


if __name__ == "__main__":
    if sys.argv[1] == "queue":
        queue()
    else:
        cluster(int(sys.argv[2]))
