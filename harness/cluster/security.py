"""TLS between the parts of a cluster: Dask executes what it is sent, so whoever can talk to it is who they should be."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path

from distributed.security import Security

from harness.cluster import ClusterError
from harness.options import program
from harness.store import write_atomically

FILES = ("cert.pem", "key.pem")
"""One certificate that signs itself, held by every part: what presents another one is refused."""


def make_certificate(folder: Path) -> Path:
    """`folder` with a new certificate and key, readable by this user only; as it is where it holds them already."""
    if not all((folder / name).exists() for name in FILES):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = Security.temporary()
        for name, text in zip(FILES, (fresh.tls_ca_file, fresh.tls_scheduler_key), strict=True):
            write_atomically(folder / name, str(text))
            (folder / name).chmod(0o600)
    return folder


def of(folder: Path | None) -> Security | None:
    """Raises ClusterError where the folder does not hold the two files."""
    if folder is None:
        return None
    for name in FILES:
        if not os.access(folder / name, os.R_OK):
            raise ClusterError(
                f"--tls {folder} holds no {name} that can be read; `{program()} scheduler --host HOST --tls {folder}` "
                "makes one there, and the folder is copied to every machine"
            )
    cert, key = (str(folder / name) for name in FILES)
    return Security(
        tls_ca_file=cert, tls_client_cert=cert, tls_client_key=key, tls_worker_cert=cert, tls_worker_key=key,
        tls_scheduler_cert=cert, tls_scheduler_key=key, require_encryption=True,
    )  # fmt: skip


def is_loopback(host: str) -> bool:
    try:
        return all(ipaddress.ip_address(info[4][0]).is_loopback for info in socket.getaddrinfo(host, None))
    except (OSError, ValueError):
        return False


def check_address(address: str, tls: Path | None, *, insecure: bool) -> str:
    """The scheduler's address with its scheme. Raises ClusterError for one beyond this machine without TLS."""
    match = re.fullmatch(r"(?:(tcp|tls)://)?(\[[0-9a-fA-F:]+\]|[^:/\[\]]+):(\d+)", address)
    if match is None:
        raise ClusterError(f"{address!r} is no address of a scheduler such as tls://host:8786")
    scheme, host, port = match.groups()
    require_tls(host.strip("[]"), tls, insecure=insecure)
    if scheme and (scheme == "tls") != (tls is not None):
        raise ClusterError(f"{address} {'wants' if scheme == 'tls' else 'has no use for'} --tls DIR")
    return f"{'tls' if tls else 'tcp'}://{host}:{port}"


def require_tls(host: str, tls: Path | None, *, insecure: bool) -> None:
    """Raises ClusterError where the host is beyond this machine and there is neither TLS nor the user's word."""
    if tls is None and not insecure and not is_loopback(host):
        raise ClusterError(
            f"{host} is beyond this machine, and a cluster executes what it is sent: give --tls DIR (its certificate and "
            "key, made there by `run.py scheduler`), or --insecure on a network where everybody may run code as you"
        )
