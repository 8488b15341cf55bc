"""`run.py doctor`: what this machine has, and what each lack means. Its text belongs into a bug report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from graph.commands.options import EXIT_FAILURE, AsJson, Command, RunsDir
from harness.device import DeviceError
from kernels.extras import install

LITTLE_FREE_GIB = 5
LEAST_FREE_MIB = 256
"""Free disk space below which the doctor warns, and below which a run is likely to end early: it keeps builds and samples of some
hundred MB."""
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

            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 400
            for what, state, said in findings:
                line = f"{state:<8} {what:<14} {one_line(said, 360)}".rstrip()
                print(textwrap.fill(line, max(width, 40), subsequent_indent=" " * 24, break_on_hyphens=False))
        found = {finding.what: finding for finding in findings}
        tunes = found["device"].state == "ok" and (
            found["g++"].state == "ok" or found["device"].said.startswith("cuda")
        )
        return 0 if tunes else EXIT_FAILURE


def look(runs_dir: Path) -> Iterator[Diagnosis]:
    yield Diagnosis(
        "astrolabe", "ok", f"{describe_version()}, Python {platform.python_version()}, {platform.platform()}"
    )
    yield from _packages()
    try:
        yield from _device()
        yield from _tools()
        yield _sandbox()
    except DeviceError as error:
        yield Diagnosis("device", "missing", str(error))
    yield from _server()
    yield _disk(runs_dir)
    yield _others()


def describe_version() -> str:
    """The version that pyproject.toml has, and the commit."""
    here = Path(__file__).resolve().parents[2]
    said = _told("git", "-C", str(here), "describe", "--always", "--dirty")
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{project['version']} ({said or 'no git'})"


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
    facts = device.facts(on)
    yield Diagnosis("device", "ok", f"{on}: {facts.name} ({facts.architecture}); {why}")
    if on == "cuda":
        looked = device.clocks()
        yield Diagnosis("clocks", "ok", ", ".join(f"{name} {value}" for name, value in looked.items()))


def _tools() -> Iterator[Diagnosis]:
    from harness import device
    from harness.backends import cpu, cuda
    from harness.probes import hot_loop, ncu
    from harness.tools import sanitizer

    why = cpu.why_unavailable()
    yield Diagnosis("g++", "missing" if why else "ok", why or _told(cpu.compiler(), "--version").split("\n")[0])
    why = cuda.why_unavailable()
    nvcc = "" if why else _told(cuda.nvcc(), "--version").strip().split("\n")[-1]
    yield Diagnosis("nvcc", "note" if why else "ok", f"{why}: CUDA sources cannot be built" if why else nvcc)
    lacking = hot_loop.why_not_counted() if platform.machine() == "x86_64" else "x86-64 only"
    said = f"cannot be read ({lacking}): a CPU source's profile has samples, but no cycles and no cache misses"
    yield Diagnosis("counters", "note" if lacking else "ok", said if lacking else "cycles and cache misses of the CPU")
    if device.choose("auto")[0] != "cuda":
        return
    profiler = ncu.find()
    yield Diagnosis(
        "ncu", "ok" if profiler else "note", str(profiler or "not found: profiles have no hardware counters")
    )
    tool = sanitizer.find()
    said = str(tool or "compute-sanitizer was not found: winners are not run under it")
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
        if isinstance(error, openai.APIConnectionError):
            slow = isinstance(error, openai.APITimeoutError)
            said = f"{shown} {f'did not answer within {ANSWER_S:g} s' if slow else 'cannot be reached'}"
            return Diagnosis("model server", "missing", said + (" through the proxy" if proxied else ""))
        said = str(error).replace(key, "[key]")
        return Diagnosis("model server", "missing", f"{shown} did not list its models: {said[:200]}")
    return Diagnosis("model server", "ok", f"{shown} has {len(names)} models: {', '.join(names[:5])}")


def _disk(runs_dir: Path) -> Diagnosis:
    there = next(folder for folder in (runs_dir.absolute(), *runs_dir.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Diagnosis("disk", "missing", f"{there} cannot be written: give --runs-dir")
    said = f"{free / 2**30:.0f} GiB free in {there}" if free >= 2**30 else f"{free / 2**20:.0f} MiB free in {there}"
    if free < LEAST_FREE_MIB * 2**20:
        return Diagnosis("disk", "missing", f"{said}: a run needs more; give --runs-dir")
    short = free < LITTLE_FREE_GIB * 2**30
    return Diagnosis("disk", "note" if short else "ok", said + (", which is little for a long run" if short else ""))


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
