"""What is told when a run ends: a command, or a webhook. Neither can change the run, its files or its exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any
from urllib.parse import urlsplit

from graph.runs import RunError, RunFolder
from harness.report.inert import one_line

URL = ("http://", "https://")
COMMAND_S, WEBHOOK_S = 60.0, 10.0
"""Then it is given up: whoever waits for the run waits for this as well."""


def check_target(target: str) -> str:
    """`target` where it is something to call. Raises RunError, also where the environment's proxy for that URL cannot be used."""
    if target.startswith(URL):
        try:
            _proxy(target)
        except ValueError as error:
            raise RunError(f"--on-end {_host(target)}: {error}") from None
        return target
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise RunError(f"--on-end {target!r} cannot be read: {error}") from None
    if not words:
        raise RunError("--on-end takes a command, or a URL that begins with http:// or https://")
    return target


def tell(target: str, run: RunFolder, state: str, message: str = "", result: dict[str, Any] | None = None) -> str:
    """Run the command with the record on its standard input, or POST it. Why that failed in one sentence, or ""."""
    folder = str(run.folder.resolve())
    record = {
        "run_id": run.id,
        "state": state,
        "message": message,
        "folder": folder,
        "result": result,
    }
    body = json.dumps(record)
    if target.startswith(URL):
        return _post(target, body)
    names = {"ASTROLABE_RUN": run.id, "ASTROLABE_STATE": state, "ASTROLABE_FOLDER": folder}
    try:
        done = subprocess.run(
            shlex.split(target), input=body, text=True, env=os.environ | names, timeout=COMMAND_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"--on-end: {target} had not ended after {COMMAND_S:.0f} s"
    except OSError as error:
        return f"--on-end: {target} cannot be started: {error.strerror}"
    if done.returncode == 0:
        return ""
    said = one_line((done.stderr or "").strip().rpartition("\n")[2], 200)
    return f"--on-end: {target} failed with exit code {done.returncode}{f': {said}' if said else ''}"


def _post(url: str, body: str) -> str:
    import httpx

    way = ""
    try:
        proxy = _proxy(url)
        way = f" through the proxy {proxy}" if proxy else ""
        answer = httpx.post(
            url, content=body, headers={"content-type": "application/json"}, timeout=WEBHOOK_S, trust_env=bool(proxy)
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return f"--on-end: {_host(url)} cannot be told{way}: {one_line(error, 160)}"
    return "" if answer.is_success else f"--on-end: {_host(url)} answered HTTP {answer.status_code}{way}"


def _proxy(url: str) -> str:
    """What stands before that server, as `proxy_of` says it. Raises ValueError where it cannot be used, or the URL names no server."""
    from nodes.policies.wire import proxy_of

    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("the URL names no server")
    return proxy_of(parts.scheme, parts.hostname)


def _host(url: str) -> str:
    """Without path and query: a webhook's secret is often there."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2].partition('?')[0]}"
