"""Where a Ray cluster is. No Ray here: it takes seconds to import, and a minute to give up."""

import os
import socket
from importlib.util import find_spec

from pipeline.errors import UserError

ADDRESS = "RAY_ADDRESS"  # environment variable, also Ray's own


def check_cluster(asked: str = "params.yaml: engine: found 'ray', accepted here: local") -> None:
    """Raises UserError, soon: Ray, which was `asked` for, is absent, or RAY_ADDRESS is silent."""
    if find_spec("ray") is None:
        raise UserError(f"{asked} (Ray is not installed; `uv sync --extra cluster` installs it)")
    address = os.environ.get(ADDRESS)
    if address in (None, "auto"):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{ADDRESS}: found {address!r}, which does not answer ({error}); accepted: host:port "
            "as `ray start --head` prints it, or auto (the cluster of this machine)"
        ) from None
