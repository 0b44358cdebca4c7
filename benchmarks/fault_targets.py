"""What benchmarks/faults.py disturbs beside `dvc repro`, run in the copy.

Two Ray nodes, an experiment in DVC's queue.

python -m benchmarks.fault_targets cluster PORT until the first node dies; the second is replaced
python -m benchmarks.fault_targets queue [STAGE ...] until the experiment has succeeded and is
applied
"""

import subprocess
import sys
import time
from typing import Any

NAME = "kept"  # of the experiment


def cluster(port: int) -> None:
    """Nodes of one core, as a user starts them, on 127.0.0.1 alone."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {
        "num_cpus": 1,
        "node_ip_address": "127.0.0.1",
        "memory": 2 * 2**30,
        "object_store_memory": 10**8,
    }
    made = Cluster(
        initialize_head=True,
        head_node_args={**node, "gcs_server_port": port, "include_dashboard": False},
    )
    second = made.add_node(**node)
    while made.head_node and made.head_node.remaining_processes_alive():
        if not second.remaining_processes_alive():
            made.remove_node(second, allow_graceful=False)
            second = made.add_node(**node)
        time.sleep(1)


def dvc(*command: str) -> str | None:
    """What DVC prints; None where it failed, as while another DVC is at work."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *command],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    return None if done.returncode else done.stdout


def queue(stages: list[str]) -> None:
    """As a user would: queue it unless it waits or runs, start the queue's worker, look again.

    A task whose worker was killed is shown as running for ever: it is queued once more.
    """
    states, idle = set[str](), 0
    while "Success" not in states:
        if (said := dvc("queue", "status")) is not None:
            states = {line.split()[-1] for line in said.splitlines() if NAME in line}
            idle = idle + 1 if "Running" in states and "0 active" in said else 0
            if not states & {"Queued", "Running", "Success"} or idle > 5:
                idle = 0
                dvc("exp", "run", "--queue", "--pull", "--name", NAME, *stages)
            dvc("queue", "start")
        time.sleep(3)
    dvc(
        "exp", "apply", NAME
    )  # which fails for outs that no stage has made here, when all others are there


if __name__ == "__main__":
    if sys.argv[1] == "queue":
        queue(sys.argv[2:])
    else:
        cluster(int(sys.argv[2]))
