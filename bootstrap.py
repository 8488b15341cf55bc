#!/usr/bin/env python3
"""Sets up .venv with everything that Astrolabe needs, at the versions that were tested. Safe to run again.

    python3 bootstrap.py            to use it
    python3 bootstrap.py --tests    to run its tests and linters too

PyTorch: one that the environment already has is kept. Otherwise a machine with an NVIDIA driver gets PyPI's wheel,
which carries CUDA; one without gets the CPU build, from where pip is set up to look or else from PyTorch's own index,
because PyPI's wheel would bring several gigabytes of CUDA with it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EVERY_S = 4.0
"""pip's own words are hundreds of lines, and without them the longest step is silent for minutes."""
DOING = re.compile(r"\s*(Collecting|Downloading|Building|Preparing|Installing)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="also what the tests and linters need")
    parser.add_argument("--venv", type=Path, default=HERE / ".venv", help="where (default: .venv)")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python is told by
        return fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; run a newer python3")
    python = options.venv / "bin" / "python"
    if not python.exists():
        say(f"making {options.venv}")
        made = subprocess.run([sys.executable, "-m", "venv", options.venv], capture_output=True, text=True)
        if made.returncode:
            return fail(f"python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv\n{made.stdout}")
    if not install_torch(python):
        return fail("PyTorch could not be installed; see pip's words above")
    wanted = ".[test]" if options.tests else "."
    say(f"installing {wanted}")
    if pip(python, "-e", wanted, cwd=HERE).returncode:
        return fail("the installation failed; see pip's words above")
    say(f"ready: {display(python)} run.py --kernel silu_and_mul")
    return 0


def install_torch(python: Path) -> bool:
    """Make sure that some PyTorch is there; False where none could be installed."""
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
        return True
    pins = (HERE / "constraints.txt").read_text()
    version = re.search(r"^torch==(\S+)$", pins, re.MULTILINE)[1]
    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
        say(f"installing torch {version} with CUDA")
        return pip(python, f"torch=={version}").returncode == 0
    say(f"no NVIDIA driver here: installing the CPU build of torch {version}")
    if pip(python, f"torch=={version}+cpu", quiet=True).returncode == 0:
        return True
    return pip(python, f"torch=={version}+cpu", "--extra-index-url", CPU_INDEX).returncode == 0


def pip(python: Path, *arguments: str, quiet: bool = False, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Runs pip install, saying every few seconds what pip is at; its own words where it fails, unless `quiet`."""
    options = ["install", "--disable-pip-version-check", "--progress-bar", "off", "-c", HERE / "constraints.txt"]
    command = [python, "-m", "pip", *options, *arguments]
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    words: list[str] = []
    reader = threading.Thread(target=lambda: [words.append(line) for line in process.stdout], daemon=True)
    reader.start()
    began = time.monotonic()
    while reader.is_alive():
        reader.join(EVERY_S)
        if reader.is_alive():
            at = next((line.strip() for line in reversed(words) if DOING.match(line)), "")
            say(f"{time.monotonic() - began:4.0f} s  {at[:100]}")
    process.wait()
    if process.returncode and not quiet:
        sys.stderr.writelines(words[-40:])
    return subprocess.CompletedProcess(command, process.returncode)


def display(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(text: str) -> None:
    print(f"bootstrap: {text}", flush=True)


def fail(text: str) -> int:
    print(f"bootstrap: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
