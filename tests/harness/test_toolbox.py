"""The box for NVIDIA's tools, attacked for real by a process that runs in it, started by the present user and by `nobody`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.farside import sandbox
from harness.processes import scratch, toolbox, watchdog

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
LIMITS = toolbox.LIMITS._replace(memory_bytes=1 << 30, file_bytes=8 << 20, scratch_bytes=16 << 20, threads=64)

PRELUDE = """
import ctypes, errno, json, os, resource, signal, socket, stat, subprocess, sys, threading, time
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
def refused(act):
    "The name of the errno that the act met, or None where it was done."
    try:
        result = act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return errno.errorcode[ctypes.get_errno()] if result == -1 else None
def answer(value):
    print(json.dumps(value), flush=True)
"""
# Runs harness/processes/toolbox.py's parent side by its path, so that `nobody` can, who cannot read this checkout.
DRIVER = """
import importlib.util, json, sys
from dataclasses import asdict
from pathlib import Path
sys.path.insert(0, sys.argv[1])
for name in ("harness", "harness.farside", "harness.farside.sandbox", "harness.processes", "harness.processes.watchdog",
             "harness.processes.toolbox"):
    place = Path(sys.argv[1], *name.split("."))
    place = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, place)
    module = importlib.util.module_from_spec(spec); sys.modules[name] = module; spec.loader.exec_module(module)
toolbox, sandbox = sys.modules["harness.processes.toolbox"], sys.modules["harness.farside.sandbox"]
asked = json.loads(sys.stdin.read())
with toolbox.Toolbox() as box:
    for name, text in asked["files"].items():
        (box.scratch / name).write_text(text)
    try:
        ran = box.run(asked["command"], readable=asked["readable"], seconds=asked["seconds"],
                      limits=sandbox.ProcessLimits(**asked["limits"]))
        print(json.dumps(asdict(ran) | {"report": box.read("report.txt")}))
    except toolbox.ToolboxUnavailable as error:
        print(json.dumps({"unavailable": str(error)}))
"""


@dataclass
class User:
    """Who starts the box, and a folder that only it and root see into."""

    name: str
    folder: Path

    @property
    def python(self) -> list[str]:
        if self.name == "self":
            return [sys.executable]
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", SYSTEM_PYTHON]

    def start(
        self, code: str, *, readable: tuple[str, ...] = (), seconds: float = 20.0, **limits: int
    ) -> subprocess.Popen:
        script = PRELUDE + textwrap.dedent(code)
        asked = {
            "files": {"act.py": script},
            "command": [self.python[-1], "-I", "-S", "act.py"],
            "readable": list(readable),
            "seconds": seconds,
            "limits": LIMITS._replace(**limits)._asdict(),
        }
        process = subprocess.Popen(
            [*self.python, "-I", "-S", "-c", DRIVER, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.folder)},  # whoever is killed leaves its folder behind, in there
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        return process

    def run(self, code: str, **options) -> dict:
        """How the boxed code ended (see toolbox.Ran), with `said`: what it answered."""
        process = self.start(code, **options)
        assert process.stdout is not None and process.stderr is not None
        text, errors = process.stdout.read(), process.stderr.read()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        assert text, errors
        ran = json.loads(text)
        if "unavailable" in ran:
            pytest.skip(ran["unavailable"])
        lines = ran["output"].strip().splitlines()
        try:
            return ran | {"said": json.loads(lines[-1]) if lines else None}
        except ValueError:
            raise AssertionError(ran["output"]) from None


@pytest.fixture(params=["self", "nobody"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    if request.param == "nobody":
        if os.getuid() != 0 or shutil.which("setpriv") is None:
            pytest.skip("only root with setpriv can become nobody")
        if not Path(SYSTEM_PYTHON).exists():
            pytest.skip(f"{SYSTEM_PYTHON} is not there, and nobody cannot read this interpreter")
    folder = Path("/tmp") / f"astrolabe-toolbox-{os.getpid()}-{request.param}"  # pytest's own are closed to others
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "harness").mkdir(parents=True)
    (folder / "harness" / "__init__.py").touch()
    for module in (sandbox, scratch, watchdog, toolbox):
        room = folder / "harness" / Path(str(module.__file__)).parent.name
        room.mkdir(exist_ok=True)
        (room / "__init__.py").touch()
        shutil.copy(str(module.__file__), room)
    if request.param == "nobody":
        os.chown(folder, NOBODY, NOBODY)
    yield User(request.param, folder)
    shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def test_every_layer_is_there_and_the_kernel_agrees(user: User) -> None:
    ran = user.run("""
        status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
        answer({"caps": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh")], "uid": os.getuid(),
                "gid": os.getgid(), "groups": os.getgroups(), "seccomp": status["Seccomp"].strip(),
                "nnp": status["NoNewPrivs"].strip(), "core": resource.getrlimit(resource.RLIMIT_CORE),
                "files": resource.getrlimit(resource.RLIMIT_NOFILE)})
    """)
    said = ran["said"]
    assert toolbox.missing(ran["layers"]) == [] and len(ran["layers"]) == len(set(ran["layers"]))
    assert said["caps"] == [0, 0, 0] and said["seccomp"] == "2" and said["nnp"] == "1"
    assert said["uid"] == (os.getuid() or NOBODY) and said["gid"] == (os.getgid() or NOBODY)
    assert set(said["groups"]) <= {said["gid"]} or os.getuid() != 0
    assert said["core"] == [0, 0] and said["files"][1] == LIMITS.open_files
    assert ran["code"] == 0 and not ran["killed"]


def test_what_is_not_the_systems_is_not_there(user: User, tmp_path: Path) -> None:
    secret = user.folder / "secret"
    secret.write_text("the expected values")
    secret.chmod(0o666)
    shared = Path("/dev/shm") / f"astrolabe-toolbox-{os.getpid()}"
    shared.write_text("the expected values")
    shared.chmod(0o666)
    home = str(Path.home())
    checkout = str(Path(__file__).resolve())
    try:
        said = user.run(f"""
            paths = ["{secret}", "{shared}", "{checkout}", "/etc/shadow", "/etc/machine-id", "{home}/.bashrc", "/var/log",
                     "/run", "/etc/hostname", "/proc/1/cwd/../output.txt", "/proc/1/root{secret}"]
            def names(path):
                try:
                    return sorted(os.listdir(path))
                except OSError:
                    return []
            home = names("{home}")
            answer({{"read": [refused(lambda: os.stat(path)) for path in paths],
                     "tmp": names("/tmp"), "shm": names("/dev/shm"), "home": home,
                     "dev": names("/dev"), "pids": len([n for n in names("/proc") if n.isdigit()]),
                     "init": [refused(lambda: open(f"/proc/1/{{name}}").read()) for name in ("environ", "mem", "maps")],
                     "passwd": open("/etc/passwd").read(), "scratch": os.getcwd()}})
        """)["said"]
    finally:
        shared.unlink()
    assert all(code in ("ENOENT", "EACCES", "EPERM") for code in said["read"]), said["read"]
    assert all(code in ("EACCES", "EPERM") for code in said["init"]), said["init"]
    interpreter = [Path(path) for path in sandbox.interpreter_paths() if path.startswith("/tmp/")]
    leading = {user.folder.name, *(path.relative_to("/tmp").parts[0] for path in interpreter)}
    assert set(said["tmp"]) <= leading and said["shm"] == []  # what leads to the scratch folder
    roots = [Path(path) for path in sandbox.interpreter_paths() if path.startswith(f"{home}/")]
    assert set(said["home"]) <= {path.relative_to(home).parts[0] for path in roots}
    assert {"null", "urandom", "shm", "fd"} <= set(said["dev"]) and not {"vda", "sda", "mem", "kmsg", "pts"} & set(
        said["dev"]
    )
    assert said["pids"] <= 3  # the namespace's init, the command
    assert said["passwd"].count("\n") == 1 and "root" not in said["passwd"]
    assert secret.read_text() == "the expected values"


def test_only_the_scratch_folder_and_the_empty_ones_can_be_written(user: User) -> None:
    shared = user.folder / "shared"
    shared.mkdir()
    (shared / "kernel.so").write_text("code")
    (shared / "kernel.so").chmod(0o666)
    shared.chmod(0o777)
    said = user.run(
        f"""
        def write(path):
            with open(path, "w") as file:
                file.write("x")
        places = ["/usr/x", "/x", "/etc/x", "/etc/passwd", "/root/x", "/sys/x", "{shared}/x", "{shared}/kernel.so",
                  "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/dev/x"]
        answer({{"write": [refused(lambda: write(path)) for path in places], "read": open("{shared}/kernel.so").read(),
                "empty": [refused(lambda: write(path)) for path in ("x", "/tmp/x", "/dev/shm/x")],
                "remount": refused(lambda: libc.mount(b"none", b"/usr", None, 0x20 | 0x1000, None)),
                "device": refused(lambda: os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)))}})
        """,
        readable=(str(shared),),
    )["said"]
    assert all(code in ("EROFS", "EACCES", "EPERM", "ENOENT") for code in said["write"]), said["write"]
    assert said["empty"] == [None, None, None] and said["read"] == "code"
    assert said["remount"] == "EPERM" and said["device"] == "EPERM"
    assert not (user.folder / "x").exists() and not Path("/dev/shm/x").exists()


def test_what_the_tools_need_is_theirs(user: User) -> None:
    """Pipes, loopback and abstract sockets, sessions, children of children and /proc of them, modes of own files."""
    said = user.run("""
        os.mkfifo("pipe")
        reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open("pipe", os.O_WRONLY)
        os.write(writer, b"through the pipe")
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname(), timeout=5)
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\\0astrolabe"); unix.listen()
        other = socket.socket(socket.AF_UNIX)
        other.connect("\\0astrolabe")
        child = subprocess.Popen(["sleep", "5"], start_new_session=True)
        state = open(f"/proc/{child.pid}/status").read()
        os.kill(child.pid, signal.SIGKILL)
        os.chmod("pipe", 0o600)
        answer({"pipe": os.read(reader, 64).decode(), "child": state.partition("\\n")[0],
                "subreaper": refused(lambda: libc.prctl(36, 1, 0, 0, 0)), "ended": child.wait(),
                "shell": subprocess.run(["sh", "-c", "echo $HOME $TMPDIR"], capture_output=True, text=True).stdout.split(),
                "scratch": os.getcwd()})
    """)["said"]
    assert said["pipe"] == "through the pipe" and said["child"].startswith("Name:") and said["ended"] == -9
    assert said["subreaper"] is None and said["shell"] == [said["scratch"]] * 2


def test_no_way_out(user: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        name = f"astrolabe-{os.getpid()}-{user.name}"
        unix.bind(f"\0{name}")
        unix.listen()
        said = user.run(f"""
            def connect(family, address):
                with socket.socket(family) as client:
                    client.settimeout(2)
                    client.connect(address)
            tries = {{
                "tcp": lambda: connect(socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})),
                "outside": lambda: connect(socket.AF_INET, ("192.0.2.1", 80)),
                "abstract": lambda: connect(socket.AF_UNIX, "\\0{name}"),
                "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
                "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
                "users": lambda: libc.unshare(0x10000000),
                "mounts": lambda: libc.unshare(0x00020000),
                "join": lambda: libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0),
                "chroot": lambda: os.chroot("/tmp"),
                "signal": lambda: os.kill({os.getpid()}, signal.SIGTERM),
                "root": lambda: os.setuid(0),
                "io_uring": lambda: libc.syscall(425, 1, None),
                "bpf": lambda: libc.syscall(321, 0, None, 0) if os.uname().machine == "x86_64" else -1,
                "keys": lambda: libc.syscall(250, 0, -3, 1) if os.uname().machine == "x86_64" else -1,
                "limits": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40)) ,
            }}
            found = {{}}
            for name, act in tries.items():
                try:
                    found[name] = refused(act)
                except ValueError:
                    found[name] = "EPERM"  # resource says it that way
            answer(found)
        """)["said"]
    assert [name for name, code in said.items() if code is None] == []
    assert (said["users"], said["mounts"], said["io_uring"], said["netlink"]) == ("EPERM",) * 4


def test_the_exit_status_and_the_report_come_back(user: User) -> None:
    ran = user.run("open('report.txt', 'w').write('found'); print('1'); sys.exit(86)")
    assert (ran["code"], ran["report"], ran["said"]) == (86, "found", 1)


def test_a_link_in_place_of_the_report_is_not_followed(user: User) -> None:
    """The parent may read what the candidate may not."""
    assert user.run("os.symlink('/etc/shadow', 'report.txt'); answer(1)")["report"] == ""
    assert user.run("os.mkfifo('report.txt'); answer(1)")["report"] == ""
    assert user.run("os.mkdir('report.txt'); answer(1)")["report"] == ""


def processes_with(marker: str) -> list[str]:
    """Command lines of this machine's processes that hold the marker, the askers' own left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if marker.encode() in command and b"astrolabe-toolbox" not in command:
            found.append(command.decode())
    return found


def test_what_it_leaves_behind_dies_with_it(user: User) -> None:
    marker = f"{3000 + os.getpid()}.25"
    user.run(f"""
        for _ in range(3):
            subprocess.Popen(["sleep", "{marker}"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", "{marker}"])
        answer(1)
    """)
    assert until(lambda: not processes_with(marker))


def test_time_runs_out_for_all_of_them(user: User) -> None:
    marker = f"{4000 + os.getpid()}.25"
    ran = user.run(
        f"""
        subprocess.Popen(["sleep", "{marker}"], start_new_session=True)
        answer(1)
        time.sleep(60)
        """,
        seconds=1.0,
    )
    assert ran["killed"] == "took longer than 1 s" and ran["code"] != 0
    assert until(lambda: not processes_with(marker))


def test_the_starter_takes_it_along(user: User) -> None:
    marker = f"{5000 + os.getpid()}.25"
    process = user.start(f"subprocess.Popen(['sleep', '{marker}'], start_new_session=True); time.sleep(60)", seconds=60)
    try:
        started = until(lambda: bool(processes_with(marker)))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        errors = process.stderr.read()
    if not started:
        pytest.skip(f"nothing was started: {errors}")
    assert until(lambda: not processes_with(marker))


def test_memory_of_processes_that_left_the_session_counts(user: User) -> None:
    ran = user.run(
        """
        answer(1)
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                held = bytearray(80 << 20)
                time.sleep(30)
        time.sleep(30)
        """,
        memory_bytes=128 << 20,
    )
    assert "of memory" in ran["killed"]


def test_a_fork_bomb_meets_a_limit(user: User) -> None:
    """Whichever comes first: the kernel's own limit in a user namespace, or one of the watchdog's."""
    ran = user.run(
        """
        answer(1)
        try:
            for _ in range(6):
                if os.fork() == 0:
                    os.setsid()
            time.sleep(60)
        except BlockingIOError:
            # Several meet it at once: none may empty what another has written before it ended them all.
            os.write(os.open("report.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND), b"no more processes")
            os.kill(-1, signal.SIGKILL)
        """,
        threads=24,
        seconds=50,
    )
    assert "processes and threads" in ran["killed"] or "of memory" in ran["killed"] or ran["report"]


def test_output_and_files_are_bounded(user: User) -> None:
    ran = user.run("""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        answer(1)
        done = 0
        try:
            for _ in range(64):
                done += os.write(1, b" " * (1 << 20))
        except OSError as error:
            with open("report.txt", "w") as file:
                file.write(f"{errno.errorcode[error.errno]} {done}")
            sys.exit(7)
    """)
    assert ran["code"] == 7 and len(ran["output"]) <= toolbox.OUTPUT_BYTES
    code, done = ran["report"].split()
    assert code == "EFBIG" and int(done) <= LIMITS.file_bytes


# --- where it cannot be had ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", toolbox.LAYERS)
def test_each_layer_is_required(layer: str) -> None:
    assert toolbox.missing([name for name in toolbox.LAYERS if name != layer]) == [toolbox.LAYERS[layer]]


@pytest.fixture
def whole() -> None:
    with toolbox.Toolbox() as box:
        try:
            box.run(["true"], readable=[], seconds=30)
        except toolbox.ToolboxUnavailable as error:
            pytest.skip(str(error))


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("sandbox._libc.unshare = lambda flags: -1", "permits no namespaces"),
        ("sandbox._processor = lambda: 'riscv64'", "seccomp is missing"),
        ("toolbox._MOUNT_SETATTR = 9999", "restricting"),
    ],
    ids=["namespaces", "seccomp", "mount attributes"],
)
def test_without_a_layer_nothing_runs_and_it_says_why(tmp_path: Path, taken: str, said: str) -> None:
    """The launcher itself, with something taken away from it by force."""
    told, tell = os.pipe()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "root").mkdir()
    spec = {
        "root": str(tmp_path / "root"), "scratch": str(tmp_path / "scratch"), "readable": [], "limits": LIMITS._asdict(),
        "report_fd": tell, "parent": 0,
    }  # fmt: skip
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(toolbox.__file__).parents[2])!r})
from harness.farside import sandbox
from harness.processes import toolbox
{taken}
spec = json.loads({json.dumps(spec)!r})
sandbox.launch(lambda names, parent: toolbox._run_boxed(spec, ["touch", "ran"], names, parent),
               parent=0, report_fd=spec["report_fd"], mounts=True)
"""
    done = subprocess.run([sys.executable, "-c", code], pass_fds=[tell], capture_output=True, text=True, timeout=60)
    os.close(tell)
    with os.fdopen(told) as pipe:
        answer = json.loads(pipe.read() or "null")
    assert done.returncode == toolbox.REFUSED, done.stderr
    assert said in answer["why"]
    assert not (tmp_path / "scratch" / "ran").exists()


def test_the_parent_raises_what_the_launcher_says() -> None:
    with toolbox.Toolbox() as box:
        shutil.rmtree(box.folder / "root")  # the launcher finds nowhere to put the new root
        with pytest.raises(toolbox.ToolboxUnavailable, match=r"its sandbox cannot be made here: .+"):
            box.run(["true"], readable=[], seconds=10)
    assert not box.folder.exists()


@pytest.mark.usefixtures("whole")
def test_links_and_folders_within_folders_may_be_asked_for(tmp_path: Path) -> None:
    """A toolkit is often a link, and what is asked for may lie in what is there already."""
    (tmp_path / "cuda-13").mkdir()
    (tmp_path / "cuda-13" / "version").write_text("13")
    (tmp_path / "cuda").symlink_to("cuda-13")
    for path in (tmp_path, tmp_path / "cuda-13"):
        path.chmod(0o755)
    asked = [
        "/bin/sh",
        "/usr/bin",
        "/lib",
        str(tmp_path / "cuda"),
        str(tmp_path / "cuda-13" / "version"),
        "/no/such/place",
    ]
    with toolbox.Toolbox() as box:
        ran = box.run(["cat", f"{tmp_path}/cuda/version", f"{tmp_path}/cuda-13/version"], readable=asked, seconds=30)
    assert (ran.code, ran.output) == (0, "1313")


@pytest.mark.usefixtures("whole")
def test_a_command_that_is_not_there_is_an_exit_code() -> None:
    with toolbox.Toolbox() as box:
        ran = box.run(["no-such-tool"], readable=[], seconds=30)
    assert ran.code == 127 and "no-such-tool" in ran.output


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_tools_filter_is_well_formed(machine: str) -> None:
    rules = sandbox.tool_rules()
    assert not {"connect", "mknod", "setsid", "chmod"} & set(rules)
    assert {
        "unshare",
        "mount",
        "setns",
        "bpf",
        "io_uring_setup",
        "keyctl",
        "perf_event_open",
        "process_vm_readv",
    } <= set(rules)
    assert len(sandbox._program(machine, rules)) % 8 == 0
