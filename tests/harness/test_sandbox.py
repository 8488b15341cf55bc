"""The box, attacked for real: every act below is done by a process that has entered it.

Each test runs as the present user, and again as `nobody` where this is root and the system has an interpreter that
nobody may read.
"""

from __future__ import annotations

import json
import os
import re
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
from harness.processes import watchdog
from harness.processes.watchdog import Watchdog, session_members

SOURCE = Path(sandbox.__file__)
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
CAP_SETPCAP = 8

PRELUDE = """
import ctypes, errno, importlib.util, json, os, resource, signal, socket, sys, threading, time
spec = importlib.util.spec_from_file_location("sandbox", sys.argv[1])
sandbox = importlib.util.module_from_spec(spec); sys.modules["sandbox"] = sandbox; spec.loader.exec_module(sandbox)
options = json.loads(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()
active = sandbox.enter(
    scratch=options["scratch"], readable=[*sandbox.interpreter_paths(), *options["readable"]], devices=[],
    limits=sandbox.ProcessLimits(**options["limits"]), gpu=False, allow_exec=options["allow_exec"], parent=parent,
)
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

EXTRAS = {
    "mount namespace", "network namespace", "ipc namespace", "pid namespace", "process limit", "address space", "not dumpable", "tcp",
}  # fmt: skip
"""Each is covered by another layer or by the Watchdog, so where it lacks no warning is given."""


@dataclass
class Box:
    """A user to be, a scratch folder, and a way to run code in there."""

    user: str
    folder: Path

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def command(
        self, code: str, limits: sandbox.ProcessLimits, *, allow_exec: bool = False, readable: list[str]
    ) -> list[str]:
        options = {
            "scratch": str(self.scratch),
            "readable": readable,
            "limits": limits._asdict(),
            "allow_exec": allow_exec,
        }
        script = self.folder / "act.py"
        script.write_text(PRELUDE + textwrap.dedent(code))
        python = [sys.executable]
        if self.user == "nobody":
            python = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", SYSTEM_PYTHON]
        return [*python, "-I", "-S", str(script), str(self.folder / "sandbox.py"), json.dumps(options)]

    def start(self, code: str, limits: sandbox.ProcessLimits | None = None, **options) -> subprocess.Popen:
        options.setdefault("readable", [])
        return subprocess.Popen(
            self.command(code, limits or sandbox.ProcessLimits(), **options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=sandbox.clean_environment(str(self.scratch)),
            cwd=self.scratch,
            start_new_session=True,
        )

    def run(self, code: str, limits: sandbox.ProcessLimits | None = None, **options):
        """What the code answered."""
        process = self.start(code, limits, **options)
        output, errors = process.communicate(timeout=30)
        assert output, f"exit code {process.returncode}: {errors}"
        return json.loads(output.splitlines()[-1])


@pytest.fixture(params=["self", "nobody"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    if request.param == "nobody":
        if os.getuid() != 0 or shutil.which("setpriv") is None:
            pytest.skip("only root with setpriv can become nobody")
        if not Path(SYSTEM_PYTHON).exists():
            pytest.skip(f"{SYSTEM_PYTHON} is not there, and nobody cannot read this interpreter")
    folder = Path("/tmp") / f"astrolabe-box-{os.getpid()}-{request.param}"  # pytest's own folders are closed to others
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "scratch").mkdir(parents=True)
    shutil.copy(SOURCE, folder / "sandbox.py")
    if request.param == "nobody":
        os.chown(folder / "scratch", NOBODY, NOBODY)
    yield Box(request.param, folder)
    shutil.rmtree(folder, ignore_errors=True)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def needs(layer: str, active: list[str]) -> None:
    if layer not in active:
        pytest.skip(f"the layer {layer!r} is not available on this machine")


def test_layers_are_reported_and_the_kernel_agrees(box: Box) -> None:
    found = box.run("""
        with open("/proc/self/status") as file:
            status = dict(line.split(":", 1) for line in file)
        answer({"active": active, "missing": sandbox.missing(active),
                "seccomp": status["Seccomp"].strip(), "nnp": status["NoNewPrivs"].strip(),
                "caps": status["CapEff"].strip(), "bound": status["CapBnd"].strip(), "core": resource.getrlimit(resource.RLIMIT_CORE)})
    """)
    assert len(found["active"]) == len(set(found["active"]))
    assert set(found["active"]) <= {*sandbox.LAYERS, *EXTRAS, "user namespace"}
    assert ("seccomp" in found["active"]) == (found["seccomp"] == "2")
    assert ("no new privileges" in found["active"]) == (found["nnp"] == "1")
    assert "capabilities" in found["active"] and int(found["caps"], 16) == 0, "whoever has them may always give them up"
    own = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if box.user == "self" and own is not None and int(own[1], 16) & 1 << CAP_SETPCAP:
        assert int(found["bound"], 16) == 0, "nor may what it starts get any back"
    assert found["core"] == [0, 0]
    assert len(found["missing"]) == len(set(sandbox.LAYERS) - set(found["active"]))


@pytest.mark.parametrize("layer", sandbox.LAYERS)
def test_a_missing_layer_is_said(layer: str) -> None:
    assert sandbox.missing([name for name in sandbox.LAYERS if name != layer]) == [sandbox.LAYERS[layer]]


def test_a_kernel_without_landlock_and_seccomp_is_reported_not_assumed(box: Box) -> None:
    """The two big layers taken away by force: nothing is claimed for them, and nothing is raised."""
    code = PRELUDE.replace(
        "active = sandbox.enter(",
        "sandbox.landlock_abi = lambda: 0\nsandbox._processor = lambda: 'riscv64'\nactive = sandbox.enter(",
    )
    process = box.start("", readable=[])
    process.communicate()
    (box.folder / "act.py").write_text(code + "answer(active)")
    result = subprocess.run(
        process.args, check=False, capture_output=True, text=True, cwd=box.scratch, start_new_session=True
    )
    active = json.loads(result.stdout)
    assert not {"files", "truncate", "device ioctl", "seccomp"} & set(active)
    said = " ".join(sandbox.missing(active))
    assert "Landlock is missing" in said and "seccomp is missing" in said


def test_files_outside_are_neither_read_nor_written(box: Box, tmp_path: Path) -> None:
    secret = box.folder / "secret"
    secret.write_text("the expected values")
    secret.chmod(0o666)
    found = box.run(
        f"""
        paths = ["{secret}", "/etc/passwd", f"/proc/{{parent}}/environ", f"/proc/{{parent}}/cmdline", "/proc/1/status"]
        answer({{
            "active": active,
            "read": [refused(lambda: open(path).read()) for path in paths],
            "list": [refused(lambda: os.listdir(path)) for path in ("/", "/tmp", "/home", "/proc", "/dev/shm")],
            "write": [refused(lambda: open(path, "w")) for path in ("{secret}", "/dev/shm/{box.folder.name}", "/tmp/{box.folder.name}.x", "/usr/x")],
            "truncate": refused(lambda: os.truncate("{secret}", 0)),
            "remove": refused(lambda: os.remove("{secret}")),
            "link": refused(lambda: os.link("{secret}", options["scratch"] + "/link")),
            "chmod": refused(lambda: os.chmod("{secret}", 0)),
            "utime": refused(lambda: os.utime("{secret}", (1, 1))),
            "xattr": refused(lambda: os.setxattr("{secret}", "user.answer", b"42")),
            "fifo": refused(lambda: os.mkfifo(options["scratch"] + "/fifo")),
            "scratch": refused(lambda: open(options["scratch"] + "/mine", "w").write("x")),
            "library": refused(lambda: ctypes.CDLL("libm.so.6") and None),
            "self": refused(lambda: open("/proc/self/status").read()),
        }})
        """
    )
    needs("files", found["active"])
    denied = ("EACCES", "EPERM", "EXDEV", "ENOENT")
    for act in ("read", "list", "write"):
        assert all(code in denied for code in found[act]), (act, found[act])
    for act in ("truncate", "remove", "link", "chmod", "utime", "xattr", "fifo"):
        assert found[act] in denied, (act, found[act])
    assert (found["scratch"], found["library"], found["self"]) == (None, None, None)
    assert secret.read_text() == "the expected values"


def test_who_runs_in_there_has_a_name(box: Box) -> None:
    """torch.compile asks for it before anything else, and the user's own is out of sight with /etc/passwd."""
    assert box.run("import getpass; answer(getpass.getuser())") == "user"


def test_the_readable_list_is_read_only(box: Box) -> None:
    shared = box.folder / "shared"
    shared.mkdir()
    (shared / "kernel.so").write_text("code")
    shared.chmod(0o777)
    found = box.run(
        f"""
        answer({{"active": active, "read": open("{shared}/kernel.so").read(),
                "write": refused(lambda: open("{shared}/kernel.so", "w")),
                "create": refused(lambda: open("{shared}/x", "w"))}})
        """,
        readable=[str(shared)],
    )
    needs("files", found["active"])
    assert found["read"] == "code" and found["write"] in ("EACCES", "EPERM") and found["create"] in ("EACCES", "EPERM")


def test_no_network_and_no_sockets(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        port = server.getsockname()[1]
        found = box.run(f"""
            def connect():
                with socket.socket() as client:
                    client.settimeout(2)
                    client.connect(("127.0.0.1", {port}))
            answer({{"active": active, "connect": refused(connect),
                    "unix": refused(lambda: socket.socket(socket.AF_UNIX)),
                    "udp": refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
                    "io_uring": refused(lambda: libc.syscall(425, 1, None))}})
        """)
        needs("network", found["active"])
        assert found["connect"] is not None
        with pytest.raises(TimeoutError):
            server.accept()
    if "seccomp" in found["active"]:
        assert (found["unix"], found["udp"], found["io_uring"]) == ("EPERM", "EPERM", "EPERM")


def test_the_namespace_alone_keeps_the_network_away(box: Box) -> None:
    """Without seccomp's refusal of sockets, as on a GPU where the driver needs some."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = box.start("")
        process.communicate()
        code = PRELUDE.replace("active = sandbox.enter(", "sandbox._seccomp = lambda **_: []\nactive = sandbox.enter(")
        (box.folder / "act.py").write_text(
            code + f'client = socket.socket(); answer([active, refused(lambda: client.connect(("127.0.0.1", {port})))])'
        )
        result = subprocess.run(
            process.args, check=False, capture_output=True, text=True, cwd=box.scratch, start_new_session=True
        )
        active, code = json.loads(result.stdout)
        needs("network namespace", active)
        assert code in ("ENETUNREACH", "ECONNREFUSED", "EACCES")


def test_the_parent_is_out_of_reach(box: Box) -> None:
    # The parent of the boxed process is this one, and as "self" it is of the same user.
    found = box.run("""
        priority = os.getpriority(os.PRIO_PROCESS, parent)
        found = {
            "active": active,
            "kill": refused(lambda: os.kill(parent, signal.SIGSTOP)),
            "kill all": refused(lambda: os.kill(-1, signal.SIGTERM)),
            "tgkill": refused(lambda: libc.syscall(234 if os.uname().machine == "x86_64" else 131, parent, parent, 19)),
            "tkill": refused(lambda: libc.syscall(200 if os.uname().machine == "x86_64" else 130, parent, 19)),
            "memory": refused(lambda: open(f"/proc/{parent}/mem", "r+b")),
            "limits": refused(lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1))),
            "affinity": refused(lambda: os.sched_setaffinity(parent, {0})),
            "own affinity": refused(lambda: os.sched_setaffinity(0, {0})),
            "idle": refused(lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0))),
            "nice": refused(lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19)),
            "pidfd": refused(lambda: os.pidfd_open(parent)),
            "keyring": refused(lambda: libc.syscall(250 if os.uname().machine == "x86_64" else 219, 0, -4, 0)),
            "shm": refused(lambda: libc.shmget(1234, 4096, 0o1600)),
            "setsid": refused(os.setsid),
            "survive": refused(lambda: libc.prctl(1, 0, 0, 0, 0)),
            "dumpable": refused(lambda: libc.prctl(4, 1, 0, 0, 0)),
            "owner": refused(lambda: __import__("fcntl").fcntl(1, 8, parent)),
            "own signal": refused(lambda: os.kill(os.getpid(), 0)),
        }
        answer(found)
    """)
    needs("seccomp", found["active"])
    assert found.pop("own signal") is None
    found.pop("active")
    assert all(code in ("EPERM", "EACCES", "ENOENT") for code in found.values()), found


def test_a_box_for_a_gpu_sees_devices_and_no_other_process(box: Box) -> None:
    """On a machine without one, too; and its memory has no limit, for CUDA maps more than there is."""
    process = box.start("pass", sandbox.ProcessLimits(memory_bytes=1 << 34))
    process.communicate(timeout=60)
    (box.folder / "act.py").write_text(
        PRELUDE.replace("gpu=False", "gpu=True")
        + "names = ['devices', 'modules', 'cpuinfo', 'self/comm', f'{parent}/environ', f'{parent}/maps']\n"
        + "found = {name: refused(lambda: open(f'/proc/{name}')) for name in names}\n"
        + "answer([active, found, resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 34])\n"
    )
    done = subprocess.run(
        process.args, check=True, capture_output=True, text=True, cwd=box.scratch, start_new_session=True
    )
    active, found, limited = json.loads(done.stdout.splitlines()[-1])
    needs("files", active)
    assert not limited and "address space" not in active
    seen = {name for name, error in found.items() if error in (None, "ENOENT")}
    assert seen == {"devices", "modules", "cpuinfo", "self/comm"}, found


AS_32_BIT = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="no other kind of calls has numbers of its own here")
@pytest.mark.parametrize("call", ["getpid()", "libc.syscall(0x40000000 + 39)"], ids=["32 bits", "x32"])
def test_calls_under_other_numbers_are_fatal(box: Box, call: str) -> None:
    """By which everything that is refused would be had all the same."""
    alone = f"import ctypes, os\n{AS_32_BIT}\nassert getpid() == os.getpid()"
    if subprocess.run([sys.executable, "-c", alone], capture_output=True).returncode != 0 and call == "getpid()":
        pytest.skip("this kernel takes no 32-bit calls")
    process = box.start(f"{AS_32_BIT}\nanswer(active); {call}; answer('survived')")
    output, _ = process.communicate(timeout=60)
    needs("seccomp", json.loads(output.splitlines()[0]))
    assert process.returncode == -signal.SIGSYS and "survived" not in output


def test_a_boxs_limits_are_those_that_were_asked_for(box: Box) -> None:
    """Of CPU seconds the soft one is met first: its signal says why, the hard one only kills."""
    asked = sandbox.ProcessLimits(file_bytes=1 << 20, open_files=64, cpu_seconds=7, memory_bytes=1 << 34)
    found = box.run(
        """
        names = ["CORE", "MSGQUEUE", "FSIZE", "NOFILE", "CPU", "AS"]
        answer([active, {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in names}])
        """,
        asked,
    )
    active, limits = found
    assert {"limits", "address space"} <= set(active)
    # Beyond the addresses that it had: with torch's libraries for a GPU, on 32 cores, 8 GiB in all left no room for another library.
    assert 1 << 34 < limits["AS"][0] == limits["AS"][1] < 1 << 35
    assert limits | {"AS": []} == {
        "CORE": [0, 0], "MSGQUEUE": [0, 0], "FSIZE": [1 << 20] * 2, "NOFILE": [64, 64], "CPU": [7, 8], "AS": [],
    }  # fmt: skip


@pytest.mark.parametrize("call", ["ptrace(16, parent, 0, 0)", "process_vm_readv(parent, 0, 0, 0, 0, 0)",
                                  "process_vm_writev(parent, 0, 0, 0, 0, 0)"])  # fmt: skip
def test_touching_another_process_is_fatal_and_visible(box: Box, call: str) -> None:
    process = box.start(f"answer(active); libc.{call}; answer('survived')")
    output, _ = process.communicate(timeout=20)
    needs("seccomp", json.loads(output.splitlines()[0]))
    assert "survived" not in output
    assert process.returncode == -signal.SIGSYS


def test_no_children_but_threads(box: Box) -> None:
    found = box.run("""
        made = []
        thread = threading.Thread(target=lambda: made.append(1)); thread.start(); thread.join()
        answer({"active": active, "fork": refused(os.fork), "thread": made,
                "exec": refused(lambda: os.execv("/bin/true", ["true"])),
                "spawn": refused(lambda: os.posix_spawn("/bin/true", ["true"], {})),
                "unshare": refused(lambda: libc.unshare(0x10000000))})
    """)
    needs("seccomp", found["active"])
    assert found["thread"] == [1]
    assert {found["fork"], found["exec"], found["spawn"], found["unshare"]} <= {"EPERM", "EACCES"}


def test_what_no_candidate_needs_is_refused_by_a_name_that_nobody_wrote_down(box: Box) -> None:
    """On a CPU: timers of files and what watches them, alarms, queues of the kernel, calls that do not exist yet."""
    found = box.run("""
        import ctypes, select, signal, time
        libc = ctypes.CDLL(None, use_errno=True)
        def called(number, *arguments):
            given = libc.syscall(number, *arguments)
            return given if given >= 0 else errno.errorcode[ctypes.get_errno()]
        numbers = {"timerfd_create": (283, 85), "signalfd4": (289, 74), "epoll_create1": (291, 20), "eventfd2": (290, 19),
                   "setitimer": (38, 103), "io_submit": (209, 2), "landlock_create_ruleset": (444, 444), "unknown": (999, 999)}
        import platform
        column = platform.machine() != "x86_64"
        time.sleep(0.001)
        select.select([], [], [], 0.001)
        answer({"active": active, "refused": {name: called(both[column], 0, 0, 0) for name, both in numbers.items()},
                "usual": [os.getpid() > 0, os.cpu_count() > 0, len(os.urandom(8)), bool(os.listdir("."))or True]})
    """)
    needs("seccomp", found["active"])
    assert set(found["refused"].values()) == {"ENOSYS"}, found["refused"]


def test_pages_that_others_have_mapped_too_cannot_be_given_back(box: Box) -> None:
    """Whoever comes next would have to fault them in anew, while it is timed."""
    found = box.run("""
        import mmap
        memory = mmap.mmap(-1, 1 << 16)
        memory[:4] = b"kept"
        answer({"active": active, "remove": refused(lambda: memory.madvise(9)), "usual": refused(lambda: memory.madvise(4)),
                "fallocate": refused(lambda: os.posix_fallocate(1, 0, 1)), "kept": memory[:4].decode()})
    """)
    needs("seccomp", found["active"])
    assert (found["remove"], found["usual"], found["fallocate"], found["kept"]) == ("EPERM", None, "EPERM", "kept")


def test_arguments_cannot_be_mapped_a_second_time(box: Box) -> None:
    found = box.run("""
        import ctypes, mmap
        memory = mmap.mmap(-1, 1 << 16)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mremap.restype, may_move = ctypes.c_void_p, 1
        libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc.mmap.restype = ctypes.c_void_p
        own = libc.mmap(None, ctypes.c_size_t(1 << 16), 3, 0x22, -1, ctypes.c_long(0))
        none = ctypes.c_void_p(-1).value
        answer({"active": active, "twice": libc.mremap(address, 0, 1 << 16, may_move) == none,
                "larger": libc.mremap(own, 1 << 16, 1 << 17, may_move) != none})
    """)
    needs("seccomp", found["active"])
    assert found["twice"] and found["larger"]


def test_limits_hold(box: Box) -> None:
    limits = sandbox.ProcessLimits(memory_bytes=512 << 20, file_bytes=1 << 20, open_files=32)
    found = box.run(
        """
        def hold():
            held = []
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        def fill():
            with open(options["scratch"] + "/big", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        def allocate():
            try:
                bytearray(1 << 30)
            except MemoryError:
                return "MemoryError"
        answer({"size": refused(fill), "memory": allocate(), "memfd": refused(lambda: os.memfd_create("x")),
                "files": refused(hold)})
        """,
        limits,
    )
    assert found == {"files": "EMFILE", "size": "EFBIG", "memory": "MemoryError", "memfd": "EPERM"}
    assert (box.scratch / "big").stat().st_size <= 1 << 20


def test_cpu_seconds_end_a_spinning_process(box: Box) -> None:
    process = box.start("while True: pass", sandbox.ProcessLimits(cpu_seconds=1))
    process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


FILL_MEMORY = "held = []\nwhile True: held.append(os.urandom(1 << 20))"
START_THREADS = "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(200)]"
FILL_SCRATCH = """
for i in range(999):
    open(f"{options['scratch']}/{i}", "wb").write(os.urandom(1 << 20))
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("code", "limits", "seconds", "reason"),
    [
        (FILL_MEMORY, {"memory_bytes": 300 << 20}, 20, "memory"),
        (START_THREADS, {"threads": 50}, 20, "threads"),
        ("time.sleep(60)", {}, 0.3, "longer than"),
        (FILL_SCRATCH, {"scratch_bytes": 20 << 20}, 20, "scratch"),
    ],
    ids=["memory", "threads", "time", "files"],
)
def test_the_watchdog_kills_and_says_why(box: Box, code: str, limits: dict, seconds: float, reason: str) -> None:
    allowed = sandbox.ProcessLimits(**limits)
    # The box itself gets no limit of memory or of processes here: the watchdog alone must do it.
    process = box.start(code, sandbox.ProcessLimits(memory_bytes=0, threads=0))
    with Watchdog(process.pid, allowed, seconds=seconds, scratch=str(box.scratch)) as watchdog:
        process.wait(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert reason in watchdog.reason


def test_the_watchdog_leaves_a_well_behaved_process_alone(box: Box) -> None:
    process = box.start("time.sleep(0.5); answer('done')")
    watchdog = Watchdog(process.pid, sandbox.ProcessLimits(), seconds=20, scratch=str(box.scratch))
    output, _ = process.communicate(timeout=20)
    assert watchdog.stop() == "" and json.loads(output) == "done"


def test_the_watchdog_looks_at_nobody_who_is_stopped_and_again_once_it_goes_on(box: Box) -> None:
    class Counting(Watchdog):
        looks = 0

        def _fault(self) -> str:
            self.looks += 1
            return super()._fault()

    process = box.start(FILL_MEMORY, sandbox.ProcessLimits(memory_bytes=0, threads=0))
    os.killpg(process.pid, signal.SIGSTOP)
    watchdog = Counting(process.pid, sandbox.ProcessLimits(memory_bytes=300 << 20), interval_s=0.001)
    watchdog.sleeps()
    looks = watchdog.looks
    time.sleep(0.1)
    assert watchdog.looks <= looks + 1, "one may have begun"
    watchdog.goes_on()
    os.killpg(process.pid, signal.SIGCONT)
    process.wait(timeout=30)
    assert "memory" in watchdog.stop()


def test_a_worker_dies_with_its_parent(box: Box) -> None:
    command = box.command("print(os.getpid(), flush=True); time.sleep(60)", sandbox.ProcessLimits(), readable=[])
    middle = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.Popen({command!r}, start_new_session=True).wait()"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert middle.stdout is not None
    worker = int(middle.stdout.readline())
    os.kill(middle.pid, signal.SIGKILL)
    middle.wait()
    assert until(lambda: watchdog._stat(worker)[:1] in ([], ["Z"]))  # whoever adopts it may reap it late


# --- the launcher of compilers -----------------------------------------------------------------------------------


def launch(scratch: Path, *command: str, limits: sandbox.ProcessLimits | None = None) -> tuple[int, str, list[str]]:
    """Exit code, merged output and active layers of a boxed command."""
    read, write = os.pipe()
    with os.fdopen(read) as report:
        process = subprocess.run(
            sandbox.launch_command(
                list(command),
                scratch=str(scratch),
                readable=[],
                limits=limits or sandbox.ProcessLimits(),
                report_fd=write,
            ),
            cwd=scratch,
            env=sandbox.clean_environment(str(scratch)),
            pass_fds=(write,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            start_new_session=True,
            timeout=60,
        )
        os.close(write)
        return process.returncode, process.stdout, json.loads(report.read())


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@needs_compiler
def test_a_compiler_works_in_the_box(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include <cmath>\nextern "C" float f(float x) { return std::exp(x); }\n')
    code, output, active = launch(tmp_path, "g++", "-O2", "-fopenmp", "-shared", "-fPIC", "a.cpp", "-o", "a.so")
    assert code == 0, output
    assert (tmp_path / "a.so").exists()
    assert sandbox.missing(active) == [] or "files" not in active


NO_SOCKETS = """
import ctypes, errno, importlib.util, json, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
spec = importlib.util.spec_from_file_location("sandbox", sys.argv[1])
sandbox = importlib.util.module_from_spec(spec); sys.modules["sandbox"] = sandbox; spec.loader.exec_module(sandbox)
left = socket.socket()
libc.prctl(38, 1, 0, 0, 0)
def met(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
families = [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX]
before = [met(lambda: socket.socket(family)) for family in families]
active = sandbox.filter_calls(sandbox.rules_of(gpu=sys.argv[3] == "gpu", allow_exec=True))
kinds = [(family, kind) for family in families for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
after = [met(lambda: socket.socket(*which)) for which in kinds]
more = [met(socket.socketpair), met(lambda: left.connect(("127.0.0.1", int(sys.argv[2]))))]
print(json.dumps([active, before, after, more]))
"""


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_compilers_rules_alone_keep_it_from_the_network(device: str) -> None:
    """Where no namespaces are to be had; even a socket that it was given leads nowhere.

    Beside a GPU, whose driver does not start without sockets of this machine (CUDA's error 304), those are there.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-I", "-S", "-c", NO_SOCKETS, str(SOURCE), port, device]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    active, before, after, more = json.loads(done.stdout)
    needs("seccomp", active)
    assert before[0] is None and before[2] is None, "this machine has sockets"
    of_this_machine = None if device == "gpu" else "EPERM"
    assert after == ["EPERM"] * 4 + [of_this_machine] * 2 and more == [of_this_machine, "EPERM"]


@needs_compiler
@pytest.mark.parametrize("secret", ["/etc/passwd", "{folder}/secret.h"])
def test_a_source_cannot_include_what_is_not_its_own(tmp_path: Path, secret: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "secret.h").write_text("int stolen;\n")
    (scratch / "a.cpp").write_text(f'#include "{secret.format(folder=tmp_path)}"\n')
    code, output, active = launch(scratch, "g++", "-c", "a.cpp")
    needs("files", active)
    assert code != 0 and "Permission denied" in output


def test_a_command_that_a_signal_ended_says_which(tmp_path: Path) -> None:
    """Through the launcher and the init of a namespace, which tell it as a shell does."""
    code, _, active = launch(tmp_path, "sh", "-c", "kill -SEGV $$")
    assert code == (128 + signal.SIGSEGV if "pid namespace" in active else -signal.SIGSEGV)


def test_what_a_command_leaves_behind_dies_with_it(tmp_path: Path) -> None:
    marker = f"{1000 + os.getpid()}.125"
    script = f"(setsid sleep {marker} &) ; (sleep {marker} & sleep {marker} &) ; exit 7"
    code, _, active = launch(tmp_path, "sh", "-c", script)
    assert code == 7
    needs("pid namespace", active)

    def left() -> bool:
        commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return any(marker.encode() in command for command in commands)

    assert until(lambda: not left())


def test_a_command_that_is_not_there_is_an_exit_code(tmp_path: Path) -> None:
    code, output, _ = launch(tmp_path, "no-such-compiler")
    assert code == 127 and "no-such-compiler" in output


def test_a_fork_bomb_in_a_compiler_is_stopped(tmp_path: Path) -> None:
    limits = sandbox.ProcessLimits(threads=40)
    script = "import os, time\nfor _ in range(12):\n    os.fork()\ntime.sleep(30)"
    process = subprocess.Popen(
        sandbox.launch_command([sys.executable, "-c", script], scratch=str(tmp_path), readable=[], limits=limits),
        cwd=tmp_path,
        env=sandbox.clean_environment(str(tmp_path)),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with Watchdog(process.pid, limits, seconds=20, tree=True) as watchdog:
        process.wait(timeout=30)
    if os.getuid() == 0:  # elsewhere RLIMIT_NPROC may have ended it first
        # Which of its two limits a bomb meets first depends on how fast it grows between two polls.
        assert "processes and threads" in watchdog.reason or "of memory" in watchdog.reason
    assert until(lambda: not session_members(process.pid))


# --- odds and ends -----------------------------------------------------------------------------------------------


def test_the_environment_holds_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "PYTHONPATH", "CUDA_INJECTION64_PATH"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    environment = sandbox.clean_environment(str(tmp_path))
    assert "secret" not in environment.values()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1" and environment["NCCL_NVLS_ENABLE"] == "0"
    assert environment["HOME"] == environment["TMPDIR"] == environment["TRITON_HOME"] == str(tmp_path)
    assert environment["LANG"] == "C.UTF-8", "what a compiler says is read"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("allow_exec", [False, True])
def test_the_filter_is_well_formed(machine: str, gpu: bool, allow_exec: bool) -> None:
    """Every jump lands inside, every path ends in a return, and the kernel's 4096 instructions are kept to."""
    import struct

    program = sandbox._program(machine, sandbox.rules_of(gpu=gpu, allow_exec=allow_exec))
    instructions = list(struct.iter_unpack("=HBBI", program))
    assert len(instructions) < 4096
    for at, (code, yes, no, _) in enumerate(instructions):
        if code in (sandbox._JEQ, sandbox._JGE, sandbox._JSET):
            assert at + 1 + max(yes, no) < len(instructions)
    last = sandbox._ENOSYS if not gpu and not allow_exec else sandbox._ALLOW
    assert instructions[-1] == (sandbox._RETURN, 0, 0, last)


def decided(block: list[tuple], *arguments: int) -> int:
    """What the kernel does with a call of these arguments, by the instructions that decide on it."""
    at, loaded = 0, 0
    while True:
        code, yes, no, value = block[at]
        at += 1
        if code == sandbox._RETURN:
            return value
        if code == sandbox._LOAD:
            loaded = arguments[(value - 16) // 8]
        else:
            at += yes if (loaded == value if code == sandbox._JEQ else loaded & value) else no


def test_a_tool_gets_sockets_of_its_own_namespace_and_no_others() -> None:
    """Of the calls that lead out of it, or deep into the kernel, those that a tool has no use for stay refused."""
    rules, netlink, packet = sandbox.tool_rules(), 16, 17
    for name in ("socket", "socketpair"):
        families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, netlink, packet)
        found = [decided(rules[name], family) for family in families]
        assert found == [sandbox._ALLOW] * 3 + [sandbox._EPERM] * 2
    seccomp, memory, schedule, name_of_thread, subreaper = 22, 35, 62, 15, 36
    assert [decided(rules["prctl"], what) for what in (seccomp, memory, schedule)] == [sandbox._EPERM] * 3
    assert [decided(rules["prctl"], what) for what in (name_of_thread, subreaper)] == [sandbox._ALLOW] * 2
    assert {"connect", "ptrace", "setpgid"}.isdisjoint(rules) and {"mount", "bpf", "unshare"} <= rules.keys()
