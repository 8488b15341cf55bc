#!/usr/bin/env python3
"""Sets up .venv with everything that Astrolabe needs, at the versions that were tested. Safe to run again.

    python3 bootstrap.py            to use it
    python3 bootstrap.py --tests    to run its tests and linters too

PyTorch: one that the environment already has is kept. Otherwise a machine with an NVIDIA driver gets PyPI's wheel,
which carries CUDA; one without gets the CPU build, from where pip is set up to look or else from PyTorch's own index,
because PyPI's wheel would bring several gigabytes of CUDA with it.

uv installs, since it takes a fifth of pip's processor time; where uv cannot be had or fails, pip does.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EVERY_S = 1.0
"""How often the line is written anew. Where it is no terminal, it is written when the step changes, and every half minute."""
REACH_S = 10.0
STEP = re.compile(r"\s*(Collecting|Downloading|Downloaded|Building|Built|Prepar|Install|Resolved|Using Python)")
MANY_CORES = 8
"""With so many everything is compiled at once; with fewer that takes half a minute and more, so only what is used is."""
USED = """
import os

def beside(work):
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)

def a_run():
    import compileall, rich.live, langgraph.checkpoint.sqlite, tree_sitter_cuda, graph.workflow, run
    for folder in ("harness", "kernels", "nodes", "compiler"):  # a run imports most of them late
        compileall.compile_dir(folder, quiet=2)

child = beside(a_run)
import torch, compiler.compile
assert os.waitpid(child, 0)[1] == 0
"""
"""Compiles what a kernel's run imports, in two processes side by side, and shows that the installation works. A model's client, a drafter and a
long search import as much again; whoever does so first keeps what it compiled."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action="store_true", help="also what the tests and linters need")
    parser.add_argument("--venv", type=Path, default=HERE / ".venv", help="where (default: .venv)")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python is told by
        return fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; run a newer python3")
    began = time.monotonic()
    python = options.venv / "bin" / "python"
    if not python.exists():
        made = watch("making " + display(options.venv), [sys.executable, "-m", "venv", "--without-pip", options.venv])
        if made.returncode:
            return fail(f"python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv\n{made.stdout}")
    pip = find_pip(python)
    if not pip:
        return fail("there is no pip; on Debian and Ubuntu: apt-get install python3-venv")
    wanted = requirements(extras=("test",) if options.tests else ())
    has_torch = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    more: list[str] = []
    if subprocess.run([python, "-c", has_torch], capture_output=True).returncode:
        version = re.search(r"^torch==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)[1]
        if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
            wanted.append(f"torch=={version}")
        else:
            wanted.append(f"torch=={version}+cpu")
            more = ["--extra-index-url", CPU_INDEX]
    if not (python.parent / "pip").exists():
        wanted.append("pip")  # for whoever installs more later
    if why := install(python, wanted, more, pip):
        return fail(why)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = watch("compiling the modules of a run", [python, "-c", USED], cwd=HERE, env=environment)
    if done.returncode:
        return fail(f"what was installed cannot be imported:\n{done.stdout[-2000:]}")
    say(f"ready after {time.monotonic() - began:.0f} s: {display(python)} run.py --kernel silu_and_mul")
    return 0


def find_pip(python: Path) -> list:
    """The pip that installs into that environment: its own, or, which takes a tenth of what it takes to put one in, this Python's; else
    its own from now on. [] where none can be had."""
    own, ours = [python, "-m", "pip"], [sys.executable, "-m", "pip", "--python", python]
    for pip in (own, ours):
        if subprocess.run([*pip, "--version"], capture_output=True).returncode == 0:
            return pip
    return own if watch("adding pip", [python, "-m", "ensurepip", "--upgrade"]).returncode == 0 else []


def requirements(extras: tuple[str, ...] = ()) -> list[str]:
    """What pyproject.toml asks for, with the named extras. Installing the project itself would only build an empty package."""
    import tomllib

    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = re.fullmatch(project["name"] + r"\[(.*)\]", line)
            found += requirements(tuple(own[1].split(","))) if own else [line]
    return sorted(set(found))


def install(python: Path, wanted: list[str], more: list[str], pip: list) -> str:
    """Install with uv, then with pip, each first from where pip is set up to look, and then from the indices in `more` too. Where it
    fails, a sentence that says why."""
    count = f"installing {len(wanted)} packages and what they need"
    by_pip = [*pip, "install", "--disable-pip-version-check", "--progress-bar", "off"]
    uv = shutil.which("uv") or python.parent / "uv"
    if not Path(uv).exists():
        watch("fetching uv", [*by_pip, "-c", CONSTRAINTS, "uv"])
    everything = (os.cpu_count() or 1) >= MANY_CORES
    tries: list[list] = []
    if Path(uv).exists():
        indices = uv_options(pip)
        indices += ["--compile-bytecode"] if everything else []
        tries += [[uv, "pip", "install", "--python", python, *indices, *also] for also in ([], more)]
    compiled = "--compile" if everything else "--no-compile"
    tries += [[*by_pip, compiled, *also] for also in ([], more)]
    tries = [command for index, command in enumerate(tries) if command not in tries[:index]]
    asked = False
    for command in tries:
        by = "uv" if Path(command[0]).name == "uv" else "pip"
        done = watch(f"{count}, by {by}", [*command, "-c", CONSTRAINTS, *wanted], cwd=HERE)
        if done.returncode == 0:
            return ""
        lacking = re.search(r"\btorch==\S+?\+cpu", done.stdout)
        if more and lacking and not asked:  # at once, since installers try an index that is out of reach for minutes
            asked = True
            if why := find_barrier(more[-1], pip):
                own = " ".join(map(str, [*pip, "install", lacking[0].removesuffix("+cpu")]))
                return (
                    f"{lacking[0]} is not where pip looks, and PyTorch's own index {more[-1]} cannot be reached: {why}. Let pip look where it "
                    f"is (PIP_INDEX_URL or PIP_FIND_LINKS), or install PyPI's, gigabytes of CUDA among it, by `{own}`; then run this again"
                )
    sys.stderr.write("\n".join(done.stdout.splitlines()[-40:]) + "\n")
    return "the installation failed; see the installer's words above"


def find_barrier(index: str, pip: list) -> str:
    """Why that index cannot be reached; "" where it answers, or where pip has a proxy of its own, which nothing here uses."""
    if re.search(
        r"^\S*?\.proxy=", subprocess.run([*pip, "config", "list"], capture_output=True, text=True).stdout, re.MULTILINE
    ):
        return ""
    import urllib.error
    import urllib.request

    by = urllib.request.getproxies().get(index.partition(":")[0], "")
    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=REACH_S).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error)) + (f", by the proxy {re.sub('//.*@', '//', by)}" if by else "")
    return ""


def uv_options(pip: list) -> list[str]:
    """Where pip is set up to look, in uv's words; uv does not read pip's files and variables."""
    names = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
    found = subprocess.run([*pip, "config", "list"], capture_output=True, text=True).stdout
    options = ["--index-strategy", "unsafe-best-match"]  # pip's: the best of all indices; versions are pinned
    for key, value in re.findall(r"^\S*?\.([a-z-]+)=(.*)$", found, re.MULTILINE):
        words = ast.literal_eval(value).split()
        if key in names:
            options += [part for word in words for part in (names[key], word)]
        elif key == "no-index" and words[0].lower() in ("1", "true", "yes", "on"):
            options.append("--no-index")
    return options


def watch(step: str, command: list, **more) -> subprocess.CompletedProcess:
    """Run a command; one line, which stays, says for how long and what it is at. Its output is the result's `stdout`."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    words: list[str] = []
    reader = threading.Thread(target=lambda: [words.append(line) for line in process.stdout], daemon=True)
    reader.start()
    began = last = time.monotonic()
    terminal = sys.stdout.isatty()
    if not terminal:
        say(step)
    while reader.is_alive():
        reader.join(EVERY_S)
        now = time.monotonic()
        if terminal or (reader.is_alive() and now - last >= 30 * EVERY_S):
            at = (
                next((line.strip() for line in reversed(words) if STEP.match(line) and " " in line.strip()), "")
                if reader.is_alive()
                else ""
            )
            line = f"bootstrap: {now - began:4.0f} s  {step}" + (f": {at}" if at else "")
            width = shutil.get_terminal_size().columns - 1 if terminal else 160
            print("\r\x1b[K" * terminal + line[:width], end="" if terminal else "\n", flush=True)
            last = now
    if terminal:
        print()
    return subprocess.CompletedProcess(command, process.wait(), "".join(words))


def display(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(text: str) -> None:
    print(f"bootstrap: {text}", flush=True)


def fail(text: str) -> int:
    print(f"bootstrap: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
