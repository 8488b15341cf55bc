"""The box for programs that watch a candidate from inside its process tree: compute-sanitizer and Nsight Compute.

They do not start under a worker's Landlock rules: they want pipes and sockets, and /proc of their children. Here the
file system is not forbidden but absent: a root of its own that holds the system, the GPU's device files and one scratch
folder, read-only but for the last, in mount, process, network and IPC namespaces of its own, as an ordinary user
(`nobody` where we are root) without capabilities. Pipes, sockets and children are free within.

Standard library only, and loadable by its path, like harness/farside/sandbox.py, whose launcher and limits it uses:

    python -I -S harness/processes/toolbox.py --spec JSON -- compute-sanitizer ...

These tools are optional, so there is no weaker form: where a layer is missing nothing is run, and `ToolboxUnavailable` says why.
What the box does not give is trust in a clean answer. Tool and candidate share a user and a process tree there, so a
hostile candidate can notice the tool, end it, or write its log; it can only harm itself by what the tool finds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

if __package__:
    from harness.farside import sandbox
    from harness.processes import scratch
    from harness.processes.watchdog import Watchdog
else:
    _spec = importlib.util.spec_from_file_location(
        "astrolabe_sandbox", Path(__file__).parent.parent / "farside" / "sandbox.py"
    )
    assert _spec is not None and _spec.loader is not None
    sandbox = importlib.util.module_from_spec(_spec)
    sys.modules[_spec.name] = sandbox
    _spec.loader.exec_module(sandbox)

# Layer -> why nothing is run without it. The order is that in which they are looked for.
LAYERS: dict[str, str] = {
    "mount namespace": "this machine permits no namespaces (unshare)",
    "files": "a root of its own could not be made",
    "pid namespace": "processes could not be set apart",
    "network namespace": "the network could not be taken away",
    "ipc namespace": "shared memory could not be set apart",
    "ordinary user": "the rights of root over files could not be given up",
    "no new privileges": "no_new_privs is missing",
    "capabilities": "capabilities could not be dropped",
    "dies with parent": "PR_SET_PDEATHSIG is missing",
    "limits": "rlimits could not be set",
    "seccomp": "seccomp is missing",
}
REFUSED = 125
"""Exit status of the launcher where the box is not whole."""
NOBODY = 65534
ROOT_BYTES, TEMPORARY_BYTES = 1 << 20, 1 << 30
LIMITS = sandbox.ProcessLimits(
    memory_bytes=24 << 30, file_bytes=2 << 30, scratch_bytes=4 << 30, threads=1024, open_files=4096
)
"""Racecheck keeps some records a thread of the kernel in the host's memory; ncu saves what a kernel overwrites."""
OUTPUT_BYTES = 1 << 20


class ToolboxUnavailable(Exception):
    """The tool cannot be run here; the message says why, in one clause."""


# --- the far side ------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
_AT_FDCWD, _AT_RECURSIVE, _DETACH = -100, 0x8000, 0x2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442


def _check(done: int, what: str) -> None:
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(options)), f"mounting {target}")


def _set(target: str, attributes: int, *, recursive: bool = True) -> None:
    """Add mount attributes to `target` and to what is mounted below it (Linux 5.12)."""
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(len(wanted))
    done = _libc.syscall(_MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), os.fsencode(target), flags, wanted, size)
    _check(int(done), f"restricting {target}")


def _show(root: str, path: str, attributes: int) -> None:
    """Bind a file or folder of the old root at the same place of the new one, unless it is there; a link stays a link."""
    target = Path(root + path)
    if os.path.lexists(target) or not os.path.lexists(path):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(path).is_symlink():
        target.symlink_to(Path(path).readlink())
        return
    if Path(path).is_dir():
        target.mkdir()
    else:
        target.touch()
    # With what is mounted below it: a driver's files are often mounts of their own.
    _mount(path, str(target), None, _BIND | _REC)
    _set(str(target), attributes)


def _covered(path: str, shown: list[str]) -> bool:
    return any(path == other or path.startswith(f"{other}/") for other in shown)


def _new_root(root: str, scratch: str, readable: list[str]) -> None:
    """Make `root` this namespace's root: the system, `readable`, devices, /proc, empty /tmp and /dev/shm, `scratch`."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, f"mode=755,size={ROOT_BYTES}")
    read_only = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
    shown: list[str] = []
    both = {str(path) for given in readable for path in (Path(given).absolute(), Path(given).resolve())}
    for folder in ("/tmp", "/dev/shm"):  # first, since what is shown may lie in there
        Path(root + folder).mkdir(parents=True)
        _mount("tmpfs", root + folder, "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={TEMPORARY_BYTES}")
    for path in (*sandbox.SYSTEM, *sandbox.ETC, *sorted(both)):
        if not _covered(path, shown):
            _show(root, path, read_only)
            if not Path(path).is_symlink():
                shown.append(path)
    _show(root, "/sys", read_only | _ATTR_NOEXEC)
    devices = [
        *sandbox.DEVICES,
        *(str(p) for p in Path("/dev").iterdir() if p.name.startswith("nvidia") or p.name == "dxg"),
    ]
    for path in devices:
        _show(root, path, _ATTR_NOSUID | _ATTR_NOEXEC)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        Path(f"{root}/dev/{name}").symlink_to(f"/proc/self/fd{target}")
    Path(f"{root}/proc").mkdir()
    _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    user = NOBODY if os.getuid() == 0 else os.getuid()
    Path(f"{root}/etc").mkdir(exist_ok=True)
    Path(f"{root}/etc/passwd").write_text(f"user:x:{user}:{user}::{scratch}:/bin/false\n")
    Path(f"{root}/etc/hosts").write_text("127.0.0.1 localhost\n")
    Path(root + scratch).mkdir(parents=True, exist_ok=True)
    _mount(scratch, root + scratch, None, _BIND)
    _set(root + scratch, _ATTR_NOSUID | _ATTR_NODEV)
    os.chdir(root)
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "changing the root")
    _check(_libc.umount2(b".", _DETACH), "letting go of the old root")
    os.chdir("/")
    _set("/", _ATTR_RDONLY, recursive=False)


def _loopback() -> None:
    """Bring the namespace's own loopback up: the tools talk to the process that they watch over it."""
    up_and_running, get_flags, set_flags = 0x1 | 0x40, 0x8913, 0x8914
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        name = struct.pack("16s24x", b"lo")
        flags = struct.unpack_from("16xH", fcntl.ioctl(channel, get_flags, name))[0]
        fcntl.ioctl(channel, set_flags, struct.pack("16sH22x", b"lo", flags | up_and_running))


def _be_nobody(scratch: str) -> None:
    """From root to `nobody`, to whom the scratch folder is given. Nothing hostile has run in there yet."""
    for folder, _, files in os.walk(scratch):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def missing(active: list[str]) -> list[str]:
    return [sentence for layer, sentence in LAYERS.items() if layer not in active]


def _run_boxed(spec: dict[str, Any], command: list[str], namespaces: list[str], parent: int) -> NoReturn:
    """Box this process and become the command, or say why not."""

    def refuse(why: str) -> NoReturn:
        os.write(spec["report_fd"], json.dumps({"why": why}).encode())
        os._exit(REFUSED)

    if "mount namespace" not in namespaces:
        refuse(LAYERS["mount namespace"])
    os.umask(0o022)
    own_users = "user namespace" in namespaces
    active = [*namespaces, "files"]
    try:
        _loopback()
        _new_root(spec["root"], spec["scratch"], [*spec["readable"], *sandbox.interpreter_paths()])
        if os.getuid() == 0 and not own_users:
            _be_nobody(spec["scratch"])
        os.chdir(spec["scratch"])
    except OSError as error:
        refuse(error.strerror or str(error))
    # Root in a user namespace of its own is still root to /proc/sys, which decides by the user alone.
    active += ["ordinary user"] if os.getuid() != 0 else []
    limits = sandbox.ProcessLimits(**spec["limits"])
    active += sandbox.restrict(namespaces, limits=limits, gpu=True, parent=parent)
    active += sandbox.filter_calls(sandbox.tool_rules())
    if why := missing(active):
        refuse(why[0])
    sandbox.become(command, list(dict.fromkeys(active)), spec["report_fd"])
    raise AssertionError("unreachable")


# --- the parent's side -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How a boxed command ended."""

    code: int
    output: str
    """The end of what the command and its children wrote to standard output and error."""
    killed: str
    """Why the watchdog ended it, or ''."""
    seconds: float
    layers: tuple[str, ...]


class Toolbox:
    """One scratch folder, and commands run in the box around it. Use as a context manager."""

    def __init__(self) -> None:
        self.folder = scratch.folder("tool")
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir()
        (self.folder / "root").mkdir()

    def run(
        self, command: list[str], *, readable: list[str], seconds: float, limits: sandbox.ProcessLimits = LIMITS
    ) -> Ran:
        """Run a command that sees `readable`, the system and the scratch folder, which is its working folder.

        Raises Unavailable where the box cannot be made whole. Whatever the command leaves behind dies with it.
        """
        told, tell = os.pipe()
        spec: dict[str, Any] = {"root": str(self.folder / "root"), "scratch": str(self.scratch), "readable": readable}
        spec |= {"limits": limits._asdict(), "report_fd": tell, "parent": os.getpid()}
        launcher = sandbox.program(Path(__file__).absolute())
        start = time.monotonic()
        try:
            with (self.folder / "output.txt").open("wb") as log:
                process = subprocess.Popen(
                    [*launcher, "--spec", json.dumps(spec), "--", *command],
                    cwd=self.scratch,
                    env=sandbox.clean_environment(str(self.scratch)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[tell],
                    start_new_session=True,
                )
            os.close(tell)
            tell = -1
            watchdog = Watchdog(
                process.pid, limits, seconds=seconds, scratch=str(self.scratch), tree=True, interval_s=0.1
            )
            try:
                report = _report(told)
                process.wait()
            finally:
                watchdog.stop()
                if process.poll() is None:  # interrupted: the launcher takes all of the namespace along
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        finally:
            os.close(told)
            if tell >= 0:
                os.close(tell)
        output = _tail(self.folder / "output.txt")
        if not isinstance(report, list):
            last = output.strip().splitlines()[-1:] or [f"the launcher ended with status {process.returncode}"]
            raise ToolboxUnavailable(
                f"its sandbox cannot be made here: {report.get('why') or watchdog.reason or last[0]}"
            )
        return Ran(process.returncode, output, watchdog.reason, time.monotonic() - start, tuple(report))

    def read(self, name: str, most: int = 16 << 20) -> str:
        return self.read_bytes(name, most).decode(errors="replace")

    def read_bytes(self, name: str, most: int = 16 << 20) -> bytes:
        """A file that the command wrote into the scratch folder, empty where there is no such plain file.

        The candidate may have put a link or a pipe in its place.
        """
        try:
            handle = os.open(self.scratch / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.ENOTDIR):
                return b""
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            return b""
        with os.fdopen(handle, "rb") as file:
            return file.read(most)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(pipe: int) -> Any:
    """What the far side said before it became the command: its layers, or {"why": ...}; {} where it said nothing."""
    with os.fdopen(os.dup(pipe), "rb") as file:
        said = file.read()
    return json.loads(said) if said else {}


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_BYTES))
        return file.read().decode(errors="replace")


if __name__ == "__main__":
    _flag, _text, _dashes, *_command = sys.argv[1:]
    if _flag != "--spec" or _dashes != "--" or not _command:
        sys.exit("usage: toolbox.py --spec JSON -- command arguments...")
    _boxed = json.loads(_text)
    sandbox.launch(
        lambda namespaces, parent: _run_boxed(_boxed, _command, namespaces, parent),
        parent=_boxed["parent"],
        report_fd=_boxed["report_fd"],
        mounts=True,
    )
