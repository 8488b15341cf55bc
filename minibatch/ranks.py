"""Several processes that train one model: started here or by torchrun, one a GPU, or on the CPU over gloo."""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from minibatch.graphs import GraphError

if TYPE_CHECKING:
    import torch

RENDEZVOUS = "ASTROLABE_RENDEZVOUS"
"""The file by which processes that `start` started find each other; torchrun's have an address and a port instead."""
PARENT = "ASTROLABE_PARENT"
"""The end of a pipe that is closed when the process that started this one has ended, however it did."""
LOOK_S = 0.05
GRACE_S = 0.5
"""Seconds in which the kernel reports the process that died, where one that missed it ended first."""


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def here() -> int:
    """How many of them are on this machine: torchrun says it, `start` starts all of them here."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks()))


def is_distributed() -> bool:
    """Whether this process is one of several that train together."""
    return "RANK" in os.environ


def end_with_parent() -> None:
    """End this rank's process as soon as the one that started it is gone: it would train, and write checkpoints, for nobody."""
    if PARENT in os.environ:
        end_of_pipe = int(os.environ.pop(PARENT))

        def wait() -> None:
            os.read(end_of_pipe, 1)  # nobody writes: it returns when the other end is closed
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def agree(value: float | None) -> float | None:
    """Rank 0's value, on every rank."""
    from torch import distributed

    if not (is_distributed() and distributed.is_initialized()):
        return value
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


def gather(value: Any) -> list[Any]:
    """Every rank's value, on every rank."""
    from torch import distributed

    if not (is_distributed() and distributed.is_initialized()):
        return [value]
    held: list[Any] = [None] * ranks()
    distributed.all_gather_object(held, value)
    return held


def join(device: str) -> None:
    """Meet the other ranks; on a GPU take the rank's own."""
    import torch
    from torch import distributed

    if device == "cuda":
        mine, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if mine >= there:
            raise GraphError(f"rank {rank()} is to have GPU {mine} of this machine, and there are {there}: start fewer")
        torch.cuda.set_device(mine)
    method = f"file://{os.environ[RENDEZVOUS]}" if RENDEZVOUS in os.environ else "env://"
    backend = "nccl" if device == "cuda" else "gloo"
    # A step's collective is in a captured graph, others come when none is replayed: NCCL need not make room for both at once.
    os.environ.setdefault("NCCL_GRAPH_MIXING_SUPPORT", "0")
    distributed.init_process_group(backend, init_method=method, rank=rank(), world_size=ranks())


@dataclass
class Peers:
    """Two float32 buffers a rank that the GPUs of one machine read of one another, and signals by which they meet."""

    mine: list[torch.Tensor]
    at: torch.Tensor
    """int64 [2, ranks] on the GPU: where each rank's are, in their order."""
    signals: torch.Tensor
    """int64 [ranks]: where each rank's int32 [ranks] are, how often each of the others was there."""
    met: torch.Tensor
    """int32 [1]: how often this rank was."""
    handle: Any
    """Holds the others' memory."""


def share(count: int, device: torch.device) -> Peers | None:
    """Two buffers of `count` zeros; None where there is one rank, or one is on another machine or a GPU that others cannot read."""
    import torch
    from torch import distributed

    if device.type != "cuda" or ranks() == 1 or not (is_distributed() and distributed.is_initialized()):
        return None
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # not needed, and some machines forbid it
    room, mine = -(-count // 4) * 4, None  # each on 16 bytes
    try:
        others = [other for other in range(ranks()) if other != device.index]
        if here() == ranks() and all(torch.cuda.can_device_access_peer(device.index, other) for other in others):
            name = distributed.group.WORLD.group_name
            mine = _symmetric().empty_strided_p2p((2 * room + ranks(),), [1], torch.float32, device, name)
    except (RuntimeError, AttributeError, ImportError):
        mine = None
    if not all(gather(mine is not None)) or mine is None:  # as one, or some would wait for others
        return None
    try:
        handle = _symmetric().rendezvous(mine)
    except RuntimeError:
        handle = None
    if not all(gather(handle is not None)) or handle is None:
        return None
    mine.zero_()
    shift = mine.data_ptr() - handle.buffer_ptrs[handle.rank]
    begin = torch.tensor([pointer + shift for pointer in handle.buffer_ptrs], device=device)
    size = room * mine.element_size()
    torch.cuda.synchronize()
    distributed.barrier()
    return Peers(
        [mine[:count], mine[room : room + count]],
        torch.stack([begin, begin + size]),
        begin + 2 * size,
        torch.zeros(1, dtype=torch.int32, device=device),
        handle,
    )


def _symmetric() -> Any:
    from torch._C._distributed_c10d import _SymmetricMemory

    return _SymmetricMemory


def meet() -> None:
    """Wait until all ranks have come here: one that leaves early takes what the others still wait for along."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.barrier()


def leave(well: bool) -> None:
    """Part from the others. One that failed (not `well`) and speaks over NCCL just ends once it has said why: NCCL's farewell
    waits for the others, who wait for this one, and for captured graphs, which the exception holds."""
    from torch import distributed

    if distributed.is_initialized():
        if well or distributed.get_backend() != "nccl":
            gc.collect()  # captured graphs too: frames that PyTorch's imports keep in a cycle hold their trainer
            distributed.destroy_process_group()
        else:
            atexit.register(end, 1)


def end(code: int) -> NoReturn:
    """End this rank's process at once: gloo's threads at times abort it (SIGABRT) while the interpreter closes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start(words: list[str], count: int, checkpoint: Path) -> int:
    """Run `python *words` as `count` ranks; 0 where all end well. Raises GraphError where one dies, after ending the rest."""
    with tempfile.TemporaryDirectory() as meeting:
        children = []
        theirs, ours = os.pipe()
        for number in range(count):
            env = os.environ | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(count)}
            env |= {RENDEZVOUS: f"{meeting}/rendezvous", PARENT: str(theirs)}
            children.append(subprocess.Popen([sys.executable, *words], env=env, pass_fds=[theirs]))
        os.close(theirs)
        try:
            while None in (codes := [child.poll() for child in children]):
                if any(codes):
                    time.sleep(GRACE_S)
                    break
                time.sleep(LOOK_S)
            failed = [(code, number) for number, child in enumerate(children) if (code := child.poll())]
            if failed:
                # Killed ones first: the others complain that it is gone.
                code, number = min(failed)
                raise GraphError(_died(number, code, checkpoint))
        finally:
            for child in children:
                child.kill()
                child.wait()
            os.close(ours)
    return 0


def _died(number: int, code: int, checkpoint: Path) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    kept = (
        f"the last checkpoint is {checkpoint}; go on with --resume" if checkpoint.exists() else "no epoch was finished"
    )
    return f"rank {number} {how}, so the others were ended too; {kept}"
