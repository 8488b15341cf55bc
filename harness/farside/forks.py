"""The far side of a fork server: a process that has imported what its workers need, loads no candidate, and forks them."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket

TYPE_CHECKING = False  # as in worker.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def die_with(parent: int) -> None:
    """End this process with the thread that started it, or now, where that has ended already."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def serve(control: int, given: dict[str, str], work: Callable[[dict[str, Any], int], None]) -> None:
    """Fork a worker for each request; tell each one's exit status on its own socket, reap it when that is closed.

    A request is {"environment", "folder", ...} with three descriptors: the worker's channel, its log, its status socket.
    The answer is the pid. So a pid stays taken until the parent has let go of it, as with a child of its own. `given`: the environment
    of all workers; `work`: what a fork does, from its request and the descriptor of its channel.
    """
    channel = socket.socket(fileno=control)
    channel.send(b"{}")
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    children: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, status
    statuses: dict[int, tuple[int, socket.socket]] = {}  # status descriptor -> pid, status
    while True:
        for fd, _events in poll.poll():
            if fd == control:
                data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
                if not data:
                    return
                pid = fork(json.loads(data), fds, given, work)
                os.close(fds[0])
                os.close(fds[1])
                pidfd = os.pidfd_open(pid)
                children[pidfd] = (pid, socket.socket(fileno=fds[2]))
                poll.register(pidfd, select.POLLIN)
                channel.send(json.dumps({"pid": pid}).encode())
            elif fd in children:
                pid, status = children.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert ended is not None
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                try:
                    status.send(json.dumps(code).encode())
                except OSError:  # the parent has let go already
                    status.close()
                    os.waitpid(pid, 0)
                    continue
                statuses[status.fileno()] = pid, status
                poll.register(status, select.POLLIN)
            else:
                poll.unregister(fd)
                pid, status = statuses.pop(fd)
                status.close()
                os.waitpid(pid, 0)


def fork(
    request: dict[str, Any],
    fds: list[int],
    given: dict[str, str],
    work: Callable[[dict[str, Any], int], None],
) -> int:
    """A worker in a session of its own, that has nothing of the fork server's open but its channel and its log."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        channel, log, _status = fds
        nothing = os.open(os.devnull, os.O_RDONLY)
        for to, descriptor in enumerate((nothing, log, log)):
            os.dup2(descriptor, to)
        os.closerange(3, channel)
        os.closerange(channel + 1, 4096)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(given | request["environment"])
        work(request, channel)
        code = 0
    finally:
        os._exit(code)
