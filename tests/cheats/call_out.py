# A shell, a package installer, the network and the user's keys; then the honest kernel.
# Must end in: PASSED, RUNTIME_ERROR
import os
import socket
import subprocess
import sys
from pathlib import Path

from honest import compute

for attempt in (
    lambda: subprocess.run([sys.executable, "-m", "pip", "install", "flashinfer"], check=True),
    lambda: socket.create_connection(("127.0.0.1", 22), timeout=1),
    lambda: Path("~root/.ssh/id_rsa").expanduser().read_text(),
    lambda: os.kill(os.getppid(), 9),
):
    try:
        attempt()
    except OSError:
        continue
    os._exit(99)


def silu_and_mul(input, out, tokens, hidden):
    compute(input, out)
