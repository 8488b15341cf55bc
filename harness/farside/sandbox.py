"""The box that hostile candidate code runs in: what the kernel offers, as root or as an ordinary user.

Standard library only, and loadable by its path from `python -I -S`, so that a worker needs nothing of the project.
A worker calls `enter()` on itself before it loads a candidate; a compiler is started through the launcher

    python -I -S harness/farside/sandbox.py --spec JSON -- g++ candidate.cpp ...

because `#include "/home/me/.ssh/id_rsa"` in a hostile source is a read, too. `enter()` returns the layers that are
active, never one that is not, and `missing()` says in sentences what is not protected.

What cannot be done here: nothing protects the GPU itself, Landlock does not hide that a path exists (stat), and
whatever shares the candidate's process (its clock, its replies) stays the candidate's to forge. The parent owns those.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import struct
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class ProcessLimits(
    namedtuple(
        "Limits",
        ("memory_bytes", "file_bytes", "scratch_bytes", "threads", "open_files", "cpu_seconds"),
        defaults=(4 << 30, 64 << 20, 1 << 30, 256, 256, 0),
    )
):
    """What one boxed process tree may use. 0 means no limit. No dataclass: to import those takes as long as to enter the box.

    `memory_bytes` is a limit of addresses beyond those it enters with where there is no GPU (CUDA reserves terabytes of them) and the
    Watchdog's limit of resident anonymous and shared memory everywhere: count the shared buffers in. `scratch_bytes`: of
    all files in the scratch folder together; the Watchdog's, as no rlimit says it. `threads`: processes and threads of
    the box together.
    """

    __slots__ = ()


# Layer -> what is not protected without it, for the user. The order is that of the harm.
LAYERS: dict[str, str] = {
    "files": "Landlock is missing: candidate code can read this user's files and write where this user may",
    "seccomp": "seccomp is missing: candidate code can fork, trace, change limits and use every system call",
    "network": "neither a network namespace nor seccomp is available: candidate code can reach the network",
    "no new privileges": "no_new_privs is missing: candidate code can gain rights through setuid programs",
    "capabilities": "capabilities could not be dropped: candidate code has the rights of root",
    "signals": "neither Landlock (ABI 6) nor seccomp guards signals: candidate code can signal this user's processes",
    "truncate": "Landlock ABI 3 is missing: candidate code can empty files that it cannot write",
    "device ioctl": "Landlock ABI 5 is missing: ioctl on device files outside the list is not refused",
    "dies with parent": "PR_SET_PDEATHSIG is missing: a worker may outlive this process",
    "limits": "rlimits could not be set: files, open files and CPU time are not bounded",
}


def missing(active: list[str]) -> list[str]:
    """One sentence for each protection that is not there, the worst first; empty when the box is whole."""
    return [sentence for layer, sentence in LAYERS.items() if layer not in active]


# --- environment and paths -------------------------------------------------------------------------------------

# Where the GPU's libraries and the toolchain are, and that NVLink multicast is off where a machine's owner says so: used on
# a host that GPUs are shared of it can put them out of service. Everything else (keys, tokens, PYTHONPATH, LD_PRELOAD) stays out.
_KEPT = (
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "CUDA_ROOT",
    "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "OMP_NUM_THREADS", "CPATH",
    "LIBRARY_PATH", "TZ", "NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
)  # fmt: skip


def clean_environment(scratch: str) -> dict[str, str]:
    """The environment of a boxed process: nothing of the user's but where CUDA and the toolchain are."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": scratch,
        "USER": "user",  # /etc/passwd is out of sight, and torch before 2.13 compiles nothing for one who has no name
        "TMPDIR": scratch,
        "CUDA_CACHE_PATH": f"{scratch}/cuda-cache",
        "TRITON_HOME": scratch,  # it keeps the HOME of its import, and a worker is forked where it is imported
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return environment


def interpreter_paths() -> list[str]:
    """What the running interpreter reads to start: its installation and, in a virtual environment, that too."""
    paths = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), Path(sys.executable).resolve().parent}
    environment = Path(sys.executable).absolute().parent.parent
    if (environment / "pyvenv.cfg").exists():  # until 3.14 `-S` leaves sys.prefix without it
        paths.add(environment)
    return sorted(str(path) for path in paths if path not in (Path("/"), Path("/usr")) and path.is_dir())


SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt", "/nix/store")
ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/alternatives")
# The CPU's and the memory's shape; nothing about other processes. CUDA reads /proc/driver/nvidia and /proc/devices.
_PROC = (
    "cpuinfo", "meminfo", "stat", "version", "filesystems", "loadavg", "uptime", "self",
    "sys/kernel", "sys/vm", "sys/fs", "sys/net/core",
)  # fmt: skip
_PROC_GPU = ("driver", "devices", "modules", "interrupts", "misc")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# A compiler needs no file without an end, and would read it to its end.
COMPILERS_DEVICES = DEVICES[:1]


def _processor() -> str:
    return os.uname().machine


# --- Landlock ----------------------------------------------------------------------------------------------------

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _READ_FILE | _READ_DIR
_SCRATCH = (
    _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _REFER | _TRUNCATE
)  # no sockets, pipes or device nodes


def landlock_abi() -> int:
    """The kernel's Landlock ABI, 0 where there is none."""
    return max(0, _libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _landlock(
    scratch: str, readable: list[str], devices: list[str], *, gpu: bool, allow_exec: bool, system: bool
) -> list[str]:
    abi = landlock_abi()
    if abi < 1:
        return []
    handled = (1 << 13) - 1
    handled |= (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    # struct landlock_ruleset_attr grew: file rights, then TCP bind and connect (ABI 4), then scopes: abstract
    # sockets and signals (ABI 6). An older kernel takes the shorter struct.
    attribute = struct.pack("=QQQ", handled, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _libc.syscall(444, attribute, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return []

    def allow(path: str, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # not on this system: nothing to allow
        try:
            if not Path(f"/proc/self/fd/{fd}").is_dir():
                rights &= _FILE_RIGHTS
            rule = struct.pack("=Qi", rights & handled, fd)
            _libc.syscall(445, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0))
        finally:
            # The inode of /proc/<pid> lives as long as its dentry: keep the descriptor, or memory pressure could
            # drop the inode and the rule with it.
            if path != "/proc/self":
                os.close(fd)

    read = _READ | (_EXECUTE if allow_exec else 0)
    for path in (*(SYSTEM if system else ()), *readable):
        allow(path, read)
    for path in ETC:
        allow(path, _READ)
    for name in _PROC:
        allow(f"/proc/{name}", _READ)
    for path in COMPILERS_DEVICES if allow_exec and not gpu else DEVICES:
        allow(path, _READ_FILE | _WRITE_FILE)
    for path in devices:
        allow(path, _READ | _WRITE_FILE | _IOCTL_DEV)
    allow("/sys/devices/system", _READ)
    if gpu:
        allow("/sys", _READ)
        for name in _PROC_GPU:
            allow(f"/proc/{name}", _READ)
        # cuInit names its threads by fopen("/proc/self/task/*/comm", "w"), which truncates, and returns 304 when it
        # may not. Only the process's own folder: the parent's /proc/<pid>/mem stays out of sight.
        allow("/proc/self", _READ | _WRITE_FILE | _TRUNCATE)
        for path in Path("/dev").iterdir():
            if path.name.startswith("nvidia") or path.name == "dxg":
                allow(str(path), _READ | _WRITE_FILE | _IOCTL_DEV)
    allow(scratch, _SCRATCH | (_EXECUTE if allow_exec else 0))

    # ABI 7: a candidate that is refused a million times must not fill the audit log.
    flags = 1 if abi >= 7 else 0
    restricted = _libc.syscall(446, ctypes.c_int(ruleset), ctypes.c_uint32(flags)) == 0
    os.close(ruleset)
    if not restricted:
        return []
    layers = ["files"]
    layers += ["truncate"] if abi >= 3 else []
    layers += ["tcp"] if abi >= 4 else []
    layers += ["device ioctl"] if abi >= 5 else []
    layers += ["signals"] if abi >= 6 else []
    return layers


# --- seccomp -----------------------------------------------------------------------------------------------------

# name -> number on (x86_64, aarch64); None where the architecture has no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171),
    "bind": (49, 200), "bpf": (321, 280), "chmod": (90, None), "chown": (92, None), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "connect": (42, 203), "delete_module": (176, 106), "execve": (59, 221), "execveat": (322, 281),
    "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25), "file_setattr": (469, 469),
    "finit_module": (313, 273), "fork": (57, None), "fremovexattr": (199, 16), "fsconfig": (431, 431),
    "fsetxattr": (190, 7), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "futimesat": (261, None), "init_module": (175, 105), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "ioctl": (16, 29), "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129),
    "lchown": (94, None), "listen": (50, 201), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "mknod": (133, None),
    "mknodat": (259, 33), "modify_ldt": (154, None), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "msgget": (68, 186),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "removexattr": (197, 14), "removexattrat": (466, 466), "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "seccomp": (317, 277), "semget": (64, 190), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "setpgid": (109, 154), "setpriority": (141, 140), "setsid": (112, 157),
    "settimeofday": (164, 170), "setxattr": (188, 5), "setxattrat": (463, 463), "shmat": (30, 196), "shmget": (29, 194),
    "socket": (41, 198), "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "timer_create": (222, 107), "io_setup": (206, 0), "madvise": (28, 233), "fallocate": (285, 47), "mbind": (237, 235),
    "tgkill": (234, 131), "tkill": (200, 130), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None), "vfork": (58, None), "vhangup": (153, 58),
}  # fmt: skip

# What a candidate on a CPU needs: files within Landlock's rules, memory, threads, its own signals, clocks that are read. Nothing
# that the kernel would go on doing for a stopped process, such as timers of files and what watches them, is among it.
_NEEDED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
    "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "close": (3, 57), "close_range": (436, 436),
    "stat": (4, None), "lstat": (6, None), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291),
    "lseek": (8, 62), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "brk": (12, 214), "msync": (26, 227), "mincore": (27, 232), "mlock": (149, 228), "munlock": (150, 229),
    "mlock2": (325, 284), "membarrier": (324, 283), "get_mempolicy": (239, 236), "set_mempolicy": (238, 237),
    "pkey_alloc": (330, 289), "pkey_free": (331, 290), "pkey_mprotect": (329, 288), "futex": (202, 98),
    "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "set_tid_address": (218, 96), "exit": (60, 93), "exit_group": (231, 94), "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "pause": (34, None),
    "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getpgid": (121, 155), "getpgrp": (111, None),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150), "capget": (125, 90),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_getattr": (315, 275), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "getpriority": (140, 141), "getcpu": (309, 168), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "gettimeofday": (96, 169),
    "time": (201, None), "times": (100, 153), "getrusage": (98, 165), "getrlimit": (97, 163), "sysinfo": (99, 179),
    "uname": (63, 160), "getrandom": (318, 278), "arch_prctl": (158, None), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "recvmsg": (47, 212), "recvfrom": (45, 207), "sendmsg": (46, 211),
    "sendto": (44, 206), "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205),
    "getsockopt": (55, 209), "setsockopt": (54, 208), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "getdents": (78, None), "getdents64": (217, 61), "readlink": (89, None), "readlinkat": (267, 78),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "umask": (95, 166), "statfs": (137, 43),
    "fstatfs": (138, 44), "mkdir": (83, None), "mkdirat": (258, 34), "unlink": (87, None), "unlinkat": (263, 35),
    "rmdir": (84, None), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "symlink": (88, None),
    "symlinkat": (266, 36), "link": (86, None), "linkat": (265, 37), "truncate": (76, 45), "ftruncate": (77, 46),
    "fsync": (74, 82), "fdatasync": (75, 83), "fadvise64": (221, 223), "flock": (73, 32), "wait4": (61, 260),
    "waitid": (247, 95), "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "copy_file_range": (326, 285),
    "sendfile": (40, 71),
}  # fmt: skip
_CALLS |= _NEEDED
_OTHERWISE = "otherwise"

# No compiler and no kernel needs these, and each reaches outside the process (or round the filter: io_uring).
_NEVER = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "inotify_init", "inotify_init1",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "ioprio_set", "kcmp", "kexec_file_load",
    "kexec_load", "keyctl", "memfd_secret", "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount",
    "move_pages", "mq_open", "msgget", "name_to_handle_at", "open_by_handle_at", "open_tree", "open_tree_attr",
    "perf_event_open", "pidfd_send_signal", "pivot_root", "process_madvise", "process_mrelease", "quotactl",
    "quotactl_fd", "reboot", "request_key", "seccomp", "semget", "setdomainname", "sethostname", "setns",
    "settimeofday", "shmat", "shmget", "swapoff", "swapon", "syslog", "umount2", "unshare", "userfaultfd", "vhangup",
    # Landlock does not know these: a file's mode, owner, times and attributes can be changed where it cannot be
    # written, and a time or an attribute is a place to keep an answer for the next process.
    "chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "file_setattr", "fremovexattr",
    "fsetxattr", "futimesat", "lchown", "lremovexattr", "lsetxattr", "mknod", "mknodat", "removexattr",
    "removexattrat", "setxattr", "setxattrat", "utime", "utimensat", "utimes",
    # Out of the process group is out of reach of killpg.
    "setpgid", "setsid",
)  # fmt: skip
# An attempt on another process's memory is no accident: end it, so that the verdict can say so.
_FATAL = ("ptrace", "process_vm_readv", "process_vm_writev")

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020080  # every CLONE_NEW* flag
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10


def _arguments_equal(argument: int, values: tuple[int, ...], otherwise: int, action: int = _ALLOW) -> list[tuple]:
    """`action` when the low word of the argument is one of the values, `otherwise` else."""
    block: list[tuple] = [(_LOAD, 0, 0, 16 + 8 * argument)]
    for value in values:
        block += [(_JEQ, 0, 1, value & 0xFFFFFFFF), (_RETURN, 0, 0, action)]
    return [*block, (_RETURN, 0, 0, otherwise)]


Rules = dict[str, list[tuple]]
"""Name of a system call -> the instructions that decide on it."""


def rules_of(*, gpu: bool, allow_exec: bool) -> Rules:
    """A candidate on a CPU may do what it needs (`_NEEDED`, and what is named below). Else everything that is not named is allowed:
    Landlock is the list of what may be touched, and nobody knows what a driver or a compiler calls.
    """
    me = os.getpid()
    rules: Rules = {name: [(_RETURN, 0, 0, _EPERM)] for name in _NEVER}
    for name in _FATAL:
        rules[name] = [(_RETURN, 0, 0, _EPERM if allow_exec else _KILL)]
    rules["clone3"] = [(_RETURN, 0, 0, _ENOSYS)]  # its flags are behind a pointer; glibc then falls back to clone
    # FIOSETOWN, SIOCSPGRP and fcntl's F_SETOWN, F_SETOWN_EX make the kernel send a signal for us; TIOCSTI and
    # TIOCLINUX type into a terminal.
    rules["ioctl"] = _arguments_equal(1, (0x8901, 0x8902, 0x5412, 0x541C), _ALLOW, _EPERM)
    rules["fcntl"] = _arguments_equal(1, (8, 15), _ALLOW, _EPERM)
    # PDEATHSIG, DUMPABLE, SECCOMP, MM, CHILD_SUBREAPER, SCHED_CORE (idles a neighbour's hyperthread), PTRACER
    rules["prctl"] = _arguments_equal(0, (1, 4, 22, 35, 36, 62, 0x59616D61), _ALLOW, _EPERM)
    if allow_exec:
        rules["clone"] = [
            (_LOAD, 0, 0, 16),
            (_JSET, 0, 1, _CLONE_NEW),
            (_RETURN, 0, 0, _EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
        for name in ("connect", "setpriority"):
            rules[name] = [(_RETURN, 0, 0, _EPERM)]
    else:
        for name in ("fork", "vfork", "execve", "execveat", "tkill", "setpriority", "connect", "memfd_create"):
            rules[name] = [(_RETURN, 0, 0, _EPERM)]
        rules["clone"] = [
            (_LOAD, 0, 0, 16),
            (_JSET, 0, 1, _CLONE_NEW),
            (_RETURN, 0, 0, _EPERM),
            (_JSET, 0, 1, _CLONE_THREAD),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _EPERM),
        ]
        rules["kill"] = _arguments_equal(0, (me, 0), _EPERM)
        for name in ("tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            rules[name] = _arguments_equal(0, (me,), _EPERM)
        for name in ("sched_setattr", "sched_setparam", "sched_setscheduler"):
            rules[name] = [(_RETURN, 0, 0, _EPERM)]
        # A same-user process may otherwise move the parent or the baseline to one core, or to idle priority. On a
        # CPU not even its own: the comparison is between equal numbers of cores.
        rules["sched_setaffinity"] = _arguments_equal(0, (0, me), _EPERM) if gpu else [(_RETURN, 0, 0, _EPERM)]
        if not gpu:
            names = ["bind", "listen", "accept", "accept4", "pidfd_open", "pidfd_getfd"]
            # What the kernel goes on doing for a process that is stopped, while its rival is timed.
            names += ["timer_create", "io_setup"]
            # Pages of the memory that all sides share: who gives them back has its rival fault them in anew, in timed calls.
            names += ["fallocate", "mbind"]
            for name in names:
                rules[name] = [(_RETURN, 0, 0, _EPERM)]
            # SIGBUS and SIGSEGV: who answers a fault with a page is not stopped by those without access around its tensors.
            rules["rt_sigaction"] = _arguments_equal(0, (7, 11), _ALLOW, _EPERM)
            # Of no bytes it maps shared pages a second time: an answer there would be an argument under another address.
            rules["mremap"] = _arguments_equal(1, (0,), _ALLOW, _EPERM)
            # MADV_REMOVE, COLD, PAGEOUT, COLLAPSE
            rules["madvise"] = _arguments_equal(2, (9, 20, 21, 25), _ALLOW, _EPERM)
            for name in _NEEDED:
                rules.setdefault(name, [(_RETURN, 0, 0, _ALLOW)])
            rules[_OTHERWISE] = [
                (_RETURN, 0, 0, _ENOSYS)
            ]  # as of a call that this kernel does not have: libraries do without
    for name in ("socket", "socketpair"):
        # A GPU's driver opens abstract sockets and pidfds of its own; Landlock and the namespace bound them.
        rules[name] = _arguments_equal(0, (_AF_UNIX,), _EPERM) if gpu else [(_RETURN, 0, 0, _EPERM)]
    rules["prlimit64"] = _arguments_equal(0, (0, me), _EPERM)
    return rules


def tool_rules() -> Rules:
    """For NVIDIA's tools, which trace a candidate's process tree (harness/processes/toolbox.py).

    Pipes, sockets, signals, sessions and file modes are left to them: their namespaces and mounts say how far each
    reaches. What stays is what would lead out of those, or deep into the kernel.
    """
    rules = rules_of(gpu=True, allow_exec=True)
    for name in (
        "connect", "fcntl", "prlimit64", "ptrace", "setpriority", "setpgid", "setsid", "inotify_init", "inotify_init1",
        "chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "lchown", "mknod", "mknodat",
        "utime", "utimensat", "utimes", "futimesat", "msgget", "semget", "shmat", "shmget",
    ):  # fmt: skip
        del rules[name]
    for name in ("socket", "socketpair"):
        rules[name] = _arguments_equal(0, (_AF_UNIX, _AF_INET, _AF_INET6), _EPERM)
    rules["prctl"] = _arguments_equal(0, (22, 35, 62), _ALLOW, _EPERM)  # SECCOMP, MM, SCHED_CORE
    return rules


def _program(machine: str, rules: Rules) -> bytes:
    """The BPF filter of the rules."""
    column, audit_arch = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}[machine]
    program: list[tuple] = [
        (_LOAD, 0, 0, 4),
        (_JEQ, 1, 0, audit_arch),
        (_RETURN, 0, 0, _KILL),  # a 32-bit call from a 64-bit process has other numbers
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        program += [(_JGE, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # the x32 numbers
    for name, block in rules.items():
        if name == _OTHERWISE:
            continue
        number = _CALLS[name][column]
        if number is not None:
            program += [(_JEQ, 0, len(block), number), *block]
    program += rules.get(_OTHERWISE, [(_RETURN, 0, 0, _ALLOW)])
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def filter_calls(rules: Rules) -> list[str]:
    machine = _processor()
    if machine not in ("x86_64", "aarch64"):
        return []
    program = _program(machine, rules)
    buffer = ctypes.create_string_buffer(program, len(program))

    class SockFprog(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filters = SockFprog(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    return ["seccomp"] if _prctl(22, 2, ctypes.addressof(filters)) == 0 else []


def _seccomp(*, gpu: bool, allow_exec: bool) -> list[str]:
    layers = filter_calls(rules_of(gpu=gpu, allow_exec=allow_exec))
    # A worker's filter bounds every call that sends a signal; a compiler must be free to signal its children.
    return [*layers, "network", *([] if allow_exec else ["signals"])] if layers else []


# --- the other layers --------------------------------------------------------------------------------------------


def _prctl(option: int, argument: int = 0, third: int = 0) -> int:
    return _libc.prctl(
        ctypes.c_int(option), ctypes.c_ulong(argument), ctypes.c_ulong(third), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


_NEWUSER, _NEWNET, _NEWIPC, _NEWPID, _NEWNS = 0x10000000, 0x40000000, 0x08000000, 0x20000000, 0x00020000


def _namespaces(*, pid: bool, mounts: bool = False) -> list[str]:
    """New network, IPC and (for the launcher's children) process namespaces, through a user namespace if need be."""
    uid, gid = os.getuid(), os.getgid()
    extra = (_NEWPID if pid else 0) | (_NEWNS if mounts else 0)
    names = ["network namespace", "ipc namespace", "network"] + (["pid namespace", "signals"] if pid else [])
    names += ["mount namespace"] if mounts else []
    if _libc.unshare(_NEWNET | _NEWIPC | extra) == 0:
        return names
    if _libc.unshare(_NEWUSER | _NEWNET | _NEWIPC | extra) != 0:
        return []
    with contextlib.suppress(OSError):  # without a map the process shows as `nobody`; its rights are the same
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    return [*names, "user namespace"]


def _mapped_bytes() -> int:
    """Addresses that this process has: of a child of a fork server torch's libraries, for a GPU too, and what each of many threads sets aside."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def _limit(limits: ProcessLimits, *, gpu: bool, own_users: bool) -> list[str]:
    """rlimits. `own_users`: in a user namespace of its own the number of processes counts this box alone."""
    layers = ["limits"]

    def bound(which: int, value: int, hard: int | None = None) -> bool:
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            value, hard = min(value, ceiling), min(value if hard is None else hard, ceiling)
        try:
            resource.setrlimit(which, (value, value if hard is None else hard))
        except (OSError, ValueError):
            return False
        return True

    held = [bound(resource.RLIMIT_CORE, 0), bound(resource.RLIMIT_MSGQUEUE, 0)]
    if limits.file_bytes:
        held.append(bound(resource.RLIMIT_FSIZE, limits.file_bytes))
    if limits.open_files:
        held.append(bound(resource.RLIMIT_NOFILE, limits.open_files))
    if limits.cpu_seconds:  # SIGXCPU names the reason; one second later SIGKILL
        held.append(bound(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1))
    if limits.memory_bytes and not gpu and bound(resource.RLIMIT_AS, limits.memory_bytes + _mapped_bytes()):
        layers.append("address space")
    # The kernel never applies NPROC to root, and elsewhere counts all of the user's processes.
    if limits.threads and own_users and os.getuid() != 0 and bound(resource.RLIMIT_NPROC, limits.threads):
        layers.append("process limit")
    return layers if all(held) else layers[1:]


def _drop_capabilities() -> list[str]:
    said = Path("/proc/sys/kernel/cap_last_cap")
    last = int(said.read_text()) if said.exists() else 40
    for capability in range(last + 1):
        _prctl(24, capability)  # PR_CAPBSET_DROP; refused without CAP_SETPCAP, when there is nothing to drop
    _prctl(47, 4)  # PR_CAP_AMBIENT_CLEAR_ALL
    header = struct.pack("=Ii", 0x20080522, 0)
    number = {"x86_64": 126, "aarch64": 91}.get(_processor())
    if number is not None:
        _libc.syscall(number, header, bytes(24))
    lines = Path("/proc/self/status").read_text().splitlines()
    held = {line.split(":")[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}
    return ["capabilities"] if not (held["CapEff"] | held["CapPrm"] | held["CapInh"]) else []


def _die_with(parent: int) -> list[str]:
    if _prctl(1, signal.SIGKILL) != 0:
        return []
    if parent and os.getppid() != parent:  # it died before we asked
        os._exit(1)
    return ["dies with parent"]


def enter(
    *,
    scratch: str,
    readable: list[str],
    devices: list[str],
    limits: ProcessLimits,
    gpu: bool,
    allow_exec: bool,
    parent: int = 0,
    system: bool = True,
    namespaces: list[str] | None = None,
) -> list[str]:
    """Box the calling process, for good. Returns the names of the layers that are active.

    Call it while there is a single thread and before CUDA is touched. `scratch` is the only folder that can be
    written; `readable` are files and folders beside the system's own (`system`); `devices` are device files beside the GPUs', of which it gets all: CUDA
    does not start where it sees one of several (four H100s, driver 580). `allow_exec` is for compilers: child processes of the same box. `parent`: pid of the expected parent, to close
    the race with its death. The kernel ends this process when the *thread* that started it ends: start workers from
    a thread that outlives them. `namespaces`: those that it is in already, else it gets its own. A missing layer is no
    error here: see `missing`.
    """
    if namespaces is None:
        namespaces = _namespaces(pid=False)
    active = restrict(namespaces, limits=limits, gpu=gpu, parent=parent)
    active += ["not dumpable"] if _prctl(4, 0) == 0 else []
    active += _landlock(scratch, readable, devices, gpu=gpu, allow_exec=allow_exec, system=system)
    active += _seccomp(gpu=gpu, allow_exec=allow_exec)
    return list(dict.fromkeys(active))  # some protections come from two layers


def restrict(namespaces: list[str], *, limits: ProcessLimits, gpu: bool, parent: int) -> list[str]:
    """The layers that are neither rules about files nor a filter of system calls, for good."""
    active = [*namespaces]
    active += ["no new privileges"] if _prctl(38, 1) == 0 else []
    active += _limit(limits, gpu=gpu, own_users="user namespace" in namespaces)
    active += _drop_capabilities()
    return active + _die_with(parent)  # a change of credentials clears it, so it comes after them


# --- the launcher ------------------------------------------------------------------------------------------------


def launch_command(
    command: list[str], *, scratch: str, readable: list[str], limits: ProcessLimits, report_fd: int = -1
) -> list[str]:
    """The argument list that runs `command` in the box. Start it with `start_new_session=True`, `close_fds=True`, an
    environment from `clean_environment`, and `pass_fds=(report_fd,)` to be told the active layers as JSON there."""
    spec = describe_box(scratch, readable, limits) | {"report_fd": report_fd, "parent": os.getpid()}
    return [*program(Path(__file__).absolute()), "--spec", json.dumps(spec), "--", *command]


def describe_box(scratch: str, readable: list[str], limits: ProcessLimits) -> dict:
    """What `run_command` must know of a box, but whose child it is; nobody is told of its layers."""
    return {"scratch": scratch, "readable": readable, "limits": limits._asdict(), "report_fd": -1}


_BY_ITS_CACHE = """\
import sys, _frozen_importlib_external as files
__file__ = sys.argv.pop(1)
exec(files.SourceFileLoader("__main__", __file__).get_code("__main__"))
"""


def program(script: Path) -> list[str]:
    """What starts a program of the standard library alone as `python -I -S script` does, but by what Python keeps of modules that it
    has compiled: a script is compiled anew each time, a fifth of the start of a worker or of a box."""
    return [sys.executable, "-I", "-S", "-c", _BY_ITS_CACHE, str(script)]


def _run_boxed(spec: dict, command: list[str], *, namespaces: list[str], parent: int) -> None:
    """Box this process and become the command. Does not return."""
    active = enter(
        scratch=spec["scratch"],
        readable=[*spec["readable"], *interpreter_paths()],
        devices=[],
        limits=ProcessLimits(**spec["limits"]),
        gpu=False,
        allow_exec=True,
        parent=parent,
        namespaces=namespaces,
    )
    become(command, active, spec["report_fd"])


def become(command: list[str], active: list[str], report_fd: int) -> None:
    """Tell the parent the active layers, then be the command. Does not return."""
    if report_fd >= 0:
        os.write(report_fd, json.dumps(active).encode())
        os.close(report_fd)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a child would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def _exit_as(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def launch(run: Callable[[list[str], int], None], *, parent: int, report_fd: int, mounts: bool = False) -> None:
    """`run(namespaces, parent)` in a process namespace of its own, so that whatever it leaves behind dies with it.

    launcher (dies with the parent) -> init of the namespace (dies with the launcher) -> `run`, which becomes the
    command. Where namespaces are not permitted the launcher runs it itself, with an empty list.
    """
    _die_with(parent)
    namespaces = _namespaces(pid=True, mounts=mounts)
    if not namespaces:
        run([], parent)
    alive_read, alive_write = os.pipe()  # end of file there: the launcher is dead
    init = os.fork()
    if init == 0:
        os.close(alive_write)
        _prctl(1, signal.SIGKILL)
        if select.select([alive_read], [], [], 0)[0]:
            os._exit(1)
        child = os.fork()
        if child == 0:
            os.close(alive_read)
            run(namespaces, 1)
        if report_fd >= 0:
            os.close(report_fd)
        while True:
            pid, status = os.wait()  # orphans come here too
            if pid == child:
                _exit_as(status)
    os.close(alive_read)
    if report_fd >= 0:
        os.close(report_fd)
    _exit_as(os.waitpid(init, 0)[1])


def run_command(spec: dict, command: list[str]) -> None:
    """Be the launcher of a command in its box, as `launch_command` describes it. Does not return."""
    launch(
        lambda namespaces, parent: _run_boxed(spec, command, namespaces=namespaces, parent=parent),
        parent=spec["parent"],
        report_fd=spec["report_fd"],
    )


if __name__ == "__main__":
    _flag, _spec, _dashes, *_command = sys.argv[1:]
    if _flag != "--spec" or _dashes != "--" or not _command:
        sys.exit("usage: sandbox.py --spec JSON -- command arguments...")
    run_command(json.loads(_spec), _command)
