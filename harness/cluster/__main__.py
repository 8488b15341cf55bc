"""`python -m harness.cluster worker PARENT ORDERS`: how the supervisor starts a worker."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> None:
    command, parent, orders = words
    assert command == "worker"
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    gc.disable()  # until it has imported what it needs: a fifth of that time goes into looking for garbage
    from harness.cluster import security, worker

    told = worker.Orders.model_validate_json(orders)
    worker.run(told, security.of(Path(told.tls) if told.tls else None))


if __name__ == "__main__":
    main(sys.argv[1:])
