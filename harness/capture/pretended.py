"""One Hopper where there is no GPU: what of torch answers for it, and tensors that are the CPU's and say they are its."""

from __future__ import annotations

import contextlib
import functools
import importlib
import shutil
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from harness.capture.standins import StandIn, StandInFunction, StandInResult

if TYPE_CHECKING:
    from harness.capture.watch import CallWatcher

GPU = "cuda"
BUILDERS = frozenset(("ninja", "nvcc", "cmake", "make", "hipcc"))
"""Programs that an engine's own loader starts; while a test is watched they build nothing."""
MAKERS = (
    "arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "normal", "ones", "ones_like",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip
"""Functions of torch's that make tensors on a device, and refuse any that they do not know before a mode sees them."""


def pretend_device(torch: Any) -> list[tuple[Any, str, Any]]:
    """(module, name, what it is in place of its own)."""

    def nothing(*_given: Any, **_named: Any) -> None:
        return None

    facts = mock.Mock(
        multi_processor_count=132, major=9, minor=0, total_memory=80 << 30, warp_size=32, L2_cache_size=50 << 20,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, gcnArchName="",
    )  # fmt: skip
    facts.name = "NVIDIA H100"
    quiet = (
        "synchronize", "manual_seed", "manual_seed_all", "empty_cache", "set_device", "init", "reset_peak_memory_stats",
        "reset_max_memory_allocated",
    )  # fmt: skip

    class Stream(contextlib.nullcontext[None]):
        """A stream or an event, on which all has been done."""

        cuda_stream = stream_id = device_index = 0

        def __init__(self, *_given: Any, **_named: Any) -> None:
            super().__init__()

        def elapsed_time(self, _other: Any) -> float:
            return 1.0

        def query(self) -> bool:
            return True

        wait = wait_event = wait_stream = record = synchronize = nothing

        def record_event(self, *_given: Any) -> Any:
            return self

    here = torch.device(GPU, 0)
    ours = torch.Generator

    class Generator(ours):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = None) -> Any:
            return ours.__new__(cls, "cpu")

    return [
        *((torch.cuda, name, nothing) for name in quiet),
        (torch.cuda, "is_available", lambda: True), (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0), (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_device_properties", lambda *_: facts), (torch.cuda, "get_device_name", lambda *_: facts.name),
        (torch.cuda, "current_stream", Stream), (torch.cuda, "default_stream", Stream),
        *((place, name, Stream) for place in (torch, torch.cuda) for name in ("Stream", "Event")), (torch.accelerator, "current_stream", Stream),
        (torch.cuda, "is_current_stream_capturing", lambda: False), (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda, "mem_get_info", lambda *_: (70 << 30, 80 << 30)),
        *((torch.cuda, name, lambda *_, **__: contextlib.nullcontext()) for name in ("device", "device_of", "stream")),
        *((torch.accelerator, name, nothing) for name in ("synchronize", "empty_cache", "set_device_index", "set_device_idx")),
        (torch.accelerator, "is_available", lambda: True), (torch.accelerator, "device_count", lambda: 1),
        (torch.accelerator, "current_accelerator", lambda *_, **__: torch.device(GPU)),
        (torch.accelerator, "current_device_index", lambda: 0), (torch.accelerator, "current_device_idx", lambda: 0),
        (torch.version, "cuda", "13.0"), (torch, "set_default_device", nothing), (torch, "Generator", Generator),
        (torch, "get_default_device", lambda: here),
    ]  # fmt: skip


def take_any_device(torch: Any) -> list[tuple[Any, str, Any]]:
    """(module, name, what it is): whoever makes a tensor on a device that a module which failed would have named makes it on the GPU."""

    def made_by(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def make(*given: Any, **named: Any) -> Any:
            if isinstance(named.get("device"), StandInResult | StandInFunction):
                named["device"] = GPU
            return own(*given, **named)

        return make

    return [(torch, name, made_by(getattr(torch, name))) for name in MAKERS]


def without_builders(watcher: CallWatcher) -> list[tuple[Any, str, Any]]:
    """(module, name, what it is): programs that build or look for a GPU are not started, and say that all is well; what torch would build is a stand-in."""
    from torch.utils import cpp_extension

    def load(name: str, *_given: Any, **_named: Any) -> StandIn:
        return StandIn(name, watcher)

    found: list[tuple[Any, str, Any]] = [(cpp_extension, name, load) for name in ("load", "load_inline")]
    found.append((cpp_extension, "CUDA_HOME", cpp_extension.CUDA_HOME or "/usr/local/cuda"))

    def is_builder(command: Any) -> bool:
        words = command.split() if isinstance(command, str) else [str(one) for one in command or ("",)]
        name = Path(words[0]).name if words else ""
        return name in BUILDERS or (name == "nvidia-smi" and shutil.which(name) is None)

    def guard(name: str, answer: Callable[[Any], Any]) -> None:
        own = getattr(subprocess, name)

        def run(command: Any, *given: Any, **named: Any) -> Any:
            return answer(command) if is_builder(command) else own(command, *given, **named)

        found.append((subprocess, name, run))

    guard("run", lambda command: subprocess.CompletedProcess(command, 0, "release 13.0, V13.0.88", ""))
    guard("check_call", lambda _command: 0)
    guard("call", lambda _command: 0)
    guard("check_output", lambda _command: b"release 13.0, V13.0.88")
    return found


def without_launches(watcher: CallWatcher) -> list[tuple[Any, str, Any]]:
    """(module, name, what it is): a kernel of Triton's is not launched, nothing is compiled by torch, and what is registered as an operator is called as
    the function that it is."""
    import torch

    found: list[tuple[Any, str, Any]] = []
    with contextlib.suppress(ImportError):
        jit = importlib.import_module("triton.runtime.jit")
        found.append((jit.KernelInterface, "__getitem__", lambda _kernel, _grid: lambda *_given, **_named: None))

    def same(function: Any = None, *_given: Any, **_named: Any) -> Any:
        return function if callable(function) else same

    def take_as(name: str, function: Any) -> None:
        watcher.operators[name] = function
        function.default = function

    def operator(name: str, function: Any = None, **_named: Any) -> Any:
        def take(function: Any) -> Any:
            take_as(name, function)
            function._schema = None
            function.register_fake = function.register_autograd = function.register_kernel = same
            return function

        return take(function) if function is not None else take

    def fake(_name: Any, function: Any = None, **_named: Any) -> Any:
        return function if function is not None else same

    own = torch.library.Library.impl

    def implement(library: Any, name: Any, function: Any, *given: Any, **named: Any) -> Any:
        if isinstance(name, str) and isinstance(function, types.FunctionType):
            take_as(name if "::" in name else f"{library.ns}::{name}", function)
        return own(library, name, function, *given, **named)

    found += [(torch, "compile", same), (torch.jit, "script", same), (torch.library, "custom_op", operator)]
    found += [(torch.library, name, operator) for name in ("triton_op",) if hasattr(torch.library, name)]
    found += [
        (torch.library, name, fake) for name in ("register_fake", "impl_abstract") if hasattr(torch.library, name)
    ]
    return [*found, (torch.library.Library, "impl", implement), (torch.library, "opcheck", lambda *_, **__: {})]


def seeing(watcher: CallWatcher) -> Any:
    """The mode in which the watcher sees torch's operators, and in which a GPU's name means the CPU where the watcher pretends."""
    import torch
    from torch.overrides import TorchFunctionMode

    from harness.capture.watch import tensors_in

    here = torch.device(GPU, 0)

    def there(value: Any) -> Any:
        if isinstance(value, str) and (value == GPU or value.startswith(f"{GPU}:")):
            return "cpu"
        if isinstance(value, torch.device) and value.type == GPU:
            return torch.device("cpu")
        return "cpu" if isinstance(value, StandInResult | StandInFunction) else value

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
            named = dict(named or {})
            name = getattr(function, "__name__", "")
            if watcher.pretends:
                if name == "cuda":
                    return given[0]
                if name == "__get__":
                    attribute = getattr(getattr(function, "__self__", None), "__name__", "")
                    if attribute in ("device", "is_cuda") and given[0].device.type == "cpu":
                        return here if attribute == "device" else True
                if name == "get_device":
                    return 0
                if name in ("to", "new_empty", "new_zeros", "new_full", "type"):
                    given = (
                        given[0],
                        *("cpu" if name == "to" and type(one) is int else there(one) for one in given[1:]),
                    )
                if "device" in named:
                    named["device"] = "cpu" if type(named["device"]) is int else there(named["device"])
                named.pop("pin_memory", None)
            if (known := watcher.taken_for_equal(name, given)) is not None:
                return known
            returned = function(*given, **named)
            if name == "numpy":
                watcher.arrays[id(returned)] = given[0]
                watcher.held.append(returned)
            if tensors_in(returned) or name == "__setitem__":
                watcher.step(function, given, named, returned)
            return returned

    return Seeing()
