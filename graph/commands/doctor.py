"""`run.py doctor`: what this machine has, and what each lack means. Its text belongs into a bug report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from graph.commands.options import EXIT_FAILURE, AsJson, Command, RunsDir
from kernels.extras import install

LEAST_FREE_GIB = 5
"""Free disk space below which the doctor warns, GiB: a long run keeps builds and samples of some hundred MB."""
ANSWER_S = 5.0
"""A model server, and a tool asked for its version, are waited for so long."""


class Diagnosis(NamedTuple):
    """One thing that was looked for. `state`: "ok", "missing" (something does not work without it), "note"."""

    what: str
    state: str
    said: str


class DoctorCommand(AsJson, RunsDir, Command):
    """Say what this machine has, and what does not work without what it lacks. Nothing is changed."""

    def go(self) -> int:
        findings = list(look(self.runs_dir))
        if self.as_json:
            print(json.dumps([finding._asdict() for finding in findings], indent=1))
        else:
            from harness.report.inert import one_line

            for what, state, said in findings:
                print(f"{state:<8} {what:<14} {one_line(said, 400)}".rstrip())
        found = {finding.what: finding for finding in findings}
        tunes = found["device"].state == "ok" and (
            found["g++"].state == "ok" or found["device"].said.startswith("cuda")
        )
        return 0 if tunes else EXIT_FAILURE


def look(runs_dir: Path) -> Iterator[Diagnosis]:
    yield Diagnosis("astrolabe", "ok", f"{_version()}, Python {platform.python_version()}, {platform.platform()}")
    yield from _packages()
    yield from _device()
    yield from _tools()
    yield _sandbox()
    yield from _server()
    yield _disk(runs_dir)
    yield _others()


def _version() -> str:
    here = Path(__file__).resolve().parents[2]
    said = _told("git", "-C", str(here), "describe", "--always", "--dirty")
    try:
        return f"{metadata.version('astrolabe')} ({said or 'no git'})"
    except metadata.PackageNotFoundError:
        return f"not installed for {sys.executable} ({said or 'no git'})"


def _packages() -> Iterator[Diagnosis]:
    names = ("torch", "triton", "langgraph", "langchain-openai", "pydantic", "tree-sitter")
    found = {name: _installed(name) for name in names}
    yield Diagnosis("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items() if version))
    extras = {
        "postgres": ("psycopg", "--checkpointer postgresql://"), "mcp": ("mcp", "run.py mcp"),
        "gnn": ("torch-geometric", "epoch with OGB's graphs and PyG's models"), "cluster": ("distributed", "--engine dask"),
        "traces": ("safetensors", "capture and definitions with stored values"), "datasets": ("datasets", "--suite hf:"),
    }  # fmt: skip
    lacks = [f"{extra} ({use})" for extra, (name, use) in extras.items() if not _installed(name)]
    if lacks:
        yield Diagnosis("extras", "note", f"not installed: {', '.join(lacks)}; in the checkout: {install('NAME')}")


def _device() -> Iterator[Diagnosis]:
    from harness import device

    on, why = device.choose("auto")
    if sys.platform != "linux":
        yield Diagnosis(
            "device", "missing", f"candidates run in a box of Linux's; {sys.platform} has none: use a Linux machine"
        )
        return
    facts = device.facts(on)
    yield Diagnosis("device", "ok", f"{on}: {facts.name} ({facts.architecture}); {why}")
    if on == "cuda":
        looked = device.clocks()
        yield Diagnosis("clocks", "ok", ", ".join(f"{name} {value}" for name, value in looked.items()))


def _tools() -> Iterator[Diagnosis]:
    from harness.backends import cpu, cuda
    from harness.probes import ncu
    from harness.tools import sanitizer

    why = cpu.why_unavailable()
    yield Diagnosis("g++", "missing" if why else "ok", why or _told(cpu.compiler(), "--version").split("\n")[0])
    why = cuda.why_unavailable()
    nvcc = "" if why else _told(cuda.nvcc(), "--version").strip().split("\n")[-1]
    yield Diagnosis("nvcc", "note" if why else "ok", f"{why}: CUDA sources cannot be built" if why else nvcc)
    profiler = ncu.find()
    yield Diagnosis(
        "ncu", "ok" if profiler else "note", str(profiler or "not found: the profiler goes by the assembly alone")
    )
    tool = sanitizer.find()
    said = str(tool or "not found: winners are not run under compute-sanitizer")
    yield Diagnosis("sanitizer", "ok" if tool else "note", said)


def _sandbox() -> Diagnosis:
    from harness.farside import sandbox

    receive, send = os.pipe()
    with tempfile.TemporaryDirectory() as scratch, os.fdopen(receive) as told:
        command = sandbox.launch_command(
            ["/bin/true"], scratch=scratch, readable=[], limits=sandbox.ProcessLimits(), report_fd=send
        )
        done = subprocess.run(
            command, env=sandbox.clean_environment(scratch), pass_fds=(send,), capture_output=True, text=True,
            start_new_session=True, cwd=scratch, timeout=60,
        )  # fmt: skip
        os.close(send)
        line = told.read()
    if done.returncode or not line:
        return Diagnosis(
            "sandbox", "missing", f"nothing can be started in it: {(done.stderr or 'no reason given').strip()}"
        )
    lacks = sandbox.missing(json.loads(line))
    return Diagnosis("sandbox", "note" if lacks else "ok", "; ".join(lacks) or "every layer is active")


def _server() -> Iterator[Diagnosis]:
    from nodes.policies.connection import DEFAULT_BASE_URL
    from nodes.policies.wire import proxy_of

    address = os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
    parts = urlsplit(address)
    try:
        proxy = proxy_of(parts.scheme, parts.hostname or "")
    except ValueError as error:
        yield Diagnosis("proxy", "missing", str(error))
        return
    if proxy:
        yield Diagnosis("proxy", "ok", f"{proxy} stands before the model server")
    if not os.environ.get("OPENAI_API_KEY"):
        yield Diagnosis("model server", "note", "no OPENAI_API_KEY: the agents are rules (--policy chat asks models)")
        return
    yield _asked(address, bool(proxy))


def _asked(address: str, proxied: bool) -> Diagnosis:
    import openai

    key = os.environ["OPENAI_API_KEY"]
    http = openai.DefaultHttpxClient(trust_env=proxied, timeout=ANSWER_S)
    shown = urlsplit(address).netloc.rpartition("@")[2]
    try:
        with openai.OpenAI(base_url=address, api_key=key, max_retries=0, http_client=http) as client:
            names = [model.id for model in client.models.list().data]
    except openai.OpenAIError as error:
        said = (
            type(error).__name__ if isinstance(error, openai.APIConnectionError) else str(error).replace(key, "[key]")
        )
        return Diagnosis("model server", "missing", f"{shown} did not list its models: {said[:200]}")
    return Diagnosis("model server", "ok", f"{shown} has {len(names)} models: {', '.join(names[:5])}")


def _disk(runs_dir: Path) -> Diagnosis:
    there = next(folder for folder in (runs_dir.absolute(), *runs_dir.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free / 2**30
    if not os.access(there, os.W_OK):
        return Diagnosis("disk", "missing", f"{there} cannot be written: give --runs-dir")
    short = free < LEAST_FREE_GIB
    return Diagnosis(
        "disk", "note" if short else "ok", f"{free:.0f} GiB free in {there}{', which is little' if short else ''}"
    )


def _others() -> Diagnosis:
    from harness.timing import load

    busy = load.others_at_work()
    said = f"others use {100 * busy:.0f} % of the processor"
    if busy >= load.DISTURBED:
        return Diagnosis("load", "note", f"{said}: timings take longer to decide")
    return Diagnosis("load", "ok", said)


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _told(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
