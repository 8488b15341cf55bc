"""The far side for Python candidates and torch extensions: harness/farside/worker.py with torch in the process.

    python -I python_worker.py fork server FD PARENT SITE none|libraries  fork workers on request, torch already imported
    python -I python_worker.py build SOURCE FOLDER SITE  in the compiler's box: import a module once, so that the
                                                         extensions that it brings are built into FOLDER

The fork server never touches CUDA and never loads a candidate. Each worker is a fork of it (10 to 30 ms instead of the 1 to
5 s of `import torch`) that boxes itself before it loads anything. Where a kernel is asked for, torch must not do the
work: in the fork server the kernels of all its computing operators are taken away.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.machinery
import importlib.util
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Launch = Callable[[Any], None]

GIVEN = dict(os.environ)
"""The environment before anything is imported: torch's compiler names its cache there, after the fork server's folder
for temporary files."""

_package = sys.modules["astrolabe_farside"] = types.ModuleType("astrolabe_farside")  # as worker.load_sibling makes it
_package.__path__ = [str(Path(__file__).parent)]
native: Any = importlib.import_module("astrolabe_farside.worker")
load_sibling = native.load_sibling
forks = load_sibling("forks")
forms = load_sibling("forms")
Refused = forms.CandidateRefused
sandbox = load_sibling("sandbox")
problem_side = load_sibling("problem")
protocol_side = load_sibling("kernelbench")
triton_side = load_sibling("triton_calls")
tvm_side = load_sibling("tvm_ffi")


# --- who does the work -----------------------------------------------------------------------------------------------

# Operators that make, move or fill memory, with random numbers too; views are known by their schema.
MOVES = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros zero_ fill_ "  # noqa: SIM905
    "full full_like new_full ones ones_like new_ones scalar_tensor arange eye uniform_ normal_ random_ copy_ _copy_from "
    "rand randn randint rand_like randn_like randint_like randperm bernoulli_ "
    "_copy_from_and_resize _foreach_copy_ clone _to_copy lift lift_fresh detach detach_ alias resize_ set_ item _local_scalar_dense "
    "record_stream is_pinned pin_memory _pin_memory resolve_conj resolve_neg _reshape_alias is_same_size "
    "_has_compatible_shallow_copy_type".split()
)
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFxGraph|TorchDynamo|CompiledFunction")
# Of torch's own libraries. Other packages are refused by their files (`foreign_libraries`), not by names: an engine's own source is the
# candidate, and its kernels lie in its namespace.
LIBRARY_KERNEL = re.compile(
    r"at::native::|at_cuda_detail|pytorch_flash|fmha_cutlass|cublas|cudnn|cusparse|cusolver|nvjet|_xmma_|cutlass::Kernel2?<cutlass_\d|"
    r"^(void )?(cutlass_\d|(volta|turing|ampere|hopper|sm\d+)_\w*(gemm|gemv|fprop|dgrad|wgrad))|(regular|vector)_fft"
)
MOVING_KERNEL = re.compile(r"copy|Copy|Fill|fill|Memset|Memcpy|distribution|arange")
# torch, what torch and triton import by themselves, and numpy; everything else in site-packages is somebody's library.
MACHINERY = frozenset(
    "torch torchgen functorch numpy nvidia triton cuda tvm_ffi setuptools pkg_resources distutils-precedence markupsafe jinja2 "  # noqa: SIM905
    "sympy mpmath networkx typing_extensions filelock fsspec packaging ninja pybind11 gmpy2 optree psutil tqdm colorama".split()
)
# Kernels for tensors of other layouts are registered under keys of their own.
LAYOUTS = (
    "SparseCPU", "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA", "MkldnnCPU", "NestedTensorCPU", "NestedTensorCUDA",
    "QuantizedCPU", "QuantizedCUDA",
)  # fmt: skip
REFUSE = list[int]().sort
"""What stands in place of a computing operator: any argument is a TypeError. A builtin cannot be changed from Python."""


def overload(name: str) -> Any:
    """`aten::silu.out` -> torch.ops.aten.silu.out."""
    import torch

    namespace, _, rest = name.partition("::")
    base, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), variant or "default")


def computes(name: str) -> bool:
    """Whether the operator overload does work: it is no view, moves no memory, and does not only call other operators."""
    import torch

    base = name.partition("::")[2].partition(".")[0]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if base in MOVES or name.startswith(("profiler::", "streams::")) or overload(name).is_view:
        return False
    return not has(name, "CompositeImplicitAutograd") or any(has(name, key) for key in ("CPU", "CUDA", *LAYOUTS))


def switch_off() -> frozenset[str]:
    """Take the kernels of all of torch's computing operators away, for this process and its forks, for good.

    So torch cannot do a candidate's work in any call, watched or not. What is registered is held by C++ objects that
    Python's collector does not list. Returns `namespace::name` of what was switched off: some 1500 operators, 0.3 s.
    """
    import torch

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    libraries: dict[str, Any] = {}
    off = set()
    for name in torch._C._dispatch_get_all_op_names():
        if not computes(name):
            continue
        namespace, _, rest = name.partition("::")
        if namespace not in libraries:
            libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "")
        for key in ("CPU", "CUDA", *(key for key in LAYOUTS if has(name, key))):
            libraries[namespace].impl(rest, key, REFUSE, False)
        off.add(name.partition(".")[0])
    # The static runtime has kernels of its own, past the dispatcher. Nothing else holds the function that makes one.
    if hasattr(torch._C, "_jit_to_static_module"):
        del torch._C._jit_to_static_module
    for library in libraries.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # for ever: without it the kernels would come back
    return frozenset(off)


class KernelWatch:
    """Names what a candidate tried: torch's C++ profiler sees operators on all threads, by C functions that are looked
    up before the candidate is loaded. For the reason of a verdict; a candidate that silences it is refused by
    `switch_off` all the same."""

    def __init__(self, off: frozenset[str]) -> None:
        import torch
        from torch._C import _autograd, _profiler

        self.off = off
        self.found: list[str] = []
        try:
            threads = _profiler._ExperimentalConfig(profile_all_threads=True)
        except TypeError:  # a torch that cannot look at other threads
            threads = _profiler._ExperimentalConfig()
        config = _profiler.ProfilerConfig(
            _profiler.ProfilerState.KINETO, False, False, False, False, False, threads, ""
        )
        activities = _profiler.ProfilerActivity
        prepare, enable, disable = _autograd._prepare_profiler, _autograd._enable_profiler, _autograd._disable_profiler
        name_of, device_of = _autograd._KinetoEvent.name, _autograd._KinetoEvent.device_type
        host = torch._C._autograd.DeviceType.CPU
        self.host, self.both = {activities.CPU}, {activities.CPU, activities.CUDA}
        self.begin = lambda wanted: (prepare(config, wanted), enable(config, wanted, set()))  # type: ignore[call-arg]  # the stub lacks scopes
        self.end = lambda: [(name_of(event), device_of(event) == host) for event in disable().events()]

    def profile(self, run: Callable[[], None], *, kernels: bool) -> None:
        """Run under the profiler. `kernels`: kernel names of the GPU too, by CUPTI. Raises Refused."""
        self.begin(self.both if kernels else self.host)
        try:
            run()
        except BaseException:
            self.look()
            raise
        self.look()

    def look(self) -> None:
        """End the profile. Raises Refused where another did the candidate's work."""
        found = set()
        for name, on_host in self.end():
            if on_host and (name in self.off or COMPILED.search(name)):
                found.add(name.replace("::", ".", 1))
            elif not on_host and LIBRARY_KERNEL.search(name) and not MOVING_KERNEL.search(name):
                found.add(name[:120])
        if found:
            raise Refused("CHEATED", f"torch did the work: {', '.join(sorted(found)[:6])}")


def foreign_libraries(site: str, own: str) -> list[str]:
    """Other packages of site-packages whose modules or compiled libraries this process has loaded."""
    found = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.startswith(f"{site}/"):
            found.add(path.removeprefix(f"{site}/").split("/")[0].removesuffix(".py"))
    with Path("/proc/self/maps").open() as file:
        for line in file:
            path = line.rstrip().partition("/")[2]
            if path and ".so" in path and f"/{path}".startswith(f"{site}/") and not f"/{path}".startswith(f"{own}/"):
                found.add(f"/{path}".removeprefix(f"{site}/").split("/")[0])
    return sorted(name for name in found if name.split(".")[0] not in MACHINERY and not name.startswith("_"))


# --- the worker ------------------------------------------------------------------------------------------------------


class PythonRequestLoop(native.RequestLoop):
    """The requests of harness/farside/worker.py for a candidate that is called with torch tensors."""

    planned: tuple[list[Any], Any, Any] | None
    REQUESTS = (*native.RequestLoop.REQUESTS, "deliver", "profile")
    torch: Any = None
    copier: Any = None
    copies_in_time = False
    """Whether calls were timed, on a GPU, with the copy of what they returned."""
    kept: dict[int, tuple[Any, list[tuple[int, int, int]]]]
    """First output of a planned call -> what it returned, and where that and its outputs lie, where it is read in its place."""

    def enter(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        box = message["box"]
        return {"active": sandbox.enter(**{**box, "limits": sandbox.ProcessLimits(**box["limits"])})}

    def warm(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """The device at hand before anything of a candidate is here."""
        import torch

        self.torch, self.gpu, self.site = torch, message["gpu"], message["site"]
        if self.gpu:
            torch.cuda.init()
            self.cuda = native.Cuda(find_cudart() or message["cuda_library"], message["device"])
            self.streams = [torch.cuda.ExternalStream(stream.value) for stream in self.cuda.streams]
            self.on_stream, self.graph = torch.cuda.stream, torch.cuda.CUDAGraph
            torch.zeros(1, device="cuda")  # torch's own state of the device, before anything is measured
        return {}

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        if self.torch is None:
            self.warm(message, fds)
        if not self.candidate:
            self.switches = self.switches_before = read_switches()
            self.kept = {}
            self.graphs: list[Any] = []
        torch, self.folder = self.torch, message["path"]
        if self.gpu and "company" in message:  # who only answers what is right is not timed
            self.neighbours = ctypes.CDLL(message["company"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.watch: Any = KernelWatch(OFF) if OFF else problem_side.Ledger()
        # What torch loads for itself differs from one installation to the next: opt_einsum, pynvml, Cython, ...
        self.ours = frozenset(foreign_libraries(self.site, self.folder))
        signature = forms.Signature(message["arguments"], message["entry"])
        torch.set_grad_enabled(False)
        if not message["ours"]:  # of torch.compile Triton is torch's own affair
            triton_side.settle(self.folder, gpu=self.gpu, compilers=message["compilers"])
        if message.get("problem"):
            self.form = problem_side.form(forms, protocol_side, message, signature)
        elif message["backend"] in ("torch_extension", "stable_abi"):
            self.form = forms.extension_form(self.folder, signature)
        elif message["backend"] == "tvm_ffi":
            self.form = tvm_side.form(forms, self.folder, signature, gpu=self.gpu)
        else:
            self.form = forms.module_form(self.folder, signature, "cuda" if self.gpu else "cpu")
        self.copier = getattr(self.form, "copier", None)
        if self.copier is not None and not self.gpu and "company" in message:
            self.copier.move = ctypes.CDLL(message["company"]).take_output
            self.copier.move.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64)
            self.copier.move.restype = ctypes.c_int64
        self.static, self.last = False, list[Any]()
        self.rounding, self.lasting, self.was_called = native.rounding_control(), read_lasting(), False
        return {"found": getattr(self.form, "found", None) or dict.fromkeys(message["symbols"], message["entry"])}

    def unloaded(self) -> dict[str, Any]:
        """With torch's switches as it came, which a reference sets for its whole process."""
        more: dict[str, Any] = {
            "form": None, "copier": None, "static": False, "last": [], "kept": {}, "graphs": [], "lasting": {}, "was_called": False,
        }  # fmt: skip
        return {**super().unloaded(), **more, "switches": self.switches_before}

    def swap(self, state: dict[str, Any]) -> dict[str, Any]:
        now = read_switches()
        before = super().swap(state)
        set_switches(self.switches)
        return {**before, "switches": now}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        if message.get("constructed"):
            form = self.form.another(message["constructed"])
            form.read_state(form.prepare(self.values(message["calls"][0], message["shapes"])))
            self.settle("the state of a module")
            return {}
        form = self.form
        if message.get("instance"):
            form = form.another(message["instance"], message.get("moved", ""))
            if form.lacks_moved:
                return {"lacks_moved": True}
        loaded = form
        if message.get("copied"):
            try:
                loaded = form.copied()
            except Exception as error:  # noqa: BLE001, who cannot be copied says so to whoever copies it
                return {"lacking": f"a way to be copied: {type(error).__name__}"}
            form = form if message.get("beside_copy") else loaded
        beside = self.form.another(message["beside"]) if message.get("beside") else None
        prepare = form.prepare_strided if message.get("strided") else form.prepare
        calls = [prepare(self.values(c, message["shapes"])) for c in message["calls"]]

        asked = message.get("rounding")
        otherwise = sys.modules["astrolabe_farside.rounding"].Rounding(**asked) if asked else nullcontext()

        mode = form.enter(message["mode"]) if message.get("mode") else nullcontext()

        def run() -> None:
            asked = getattr(form, "problem", None) or {}
            looks = (
                form is self.form and asked.get("role") == "candidate"
            )  # of another module where it lies in memory is to be as it was
            before = read_generators() if looks and not form.draws else None
            with mode:
                make_calls()
            if looks or not asked:
                self.require_unchanged(asked, before, calls)

        def make_calls() -> None:
            # A module's state is one: calls of it follow each other, and with `in_a_row` go on from each other, so many in front of these and
            # the first one, in turn, after which nobody reads it, each behind a call of another module where there is one `beside`.
            stateful, in_a_row = getattr(form, "stateful", False), message.get("in_a_row", 0)
            row = [calls[index % len(calls)] for index in range(in_a_row - 1)]
            for _ in range(message.get("repeat", 1)):
                for index, prepared in enumerate([*row, *calls]):
                    with self.stream(0 if stateful or message.get("in_turn") else index % 2), otherwise:
                        goes_on = stateful and index > 0 and in_a_row > 0
                        more = {"goes_on": goes_on, "is_read": index >= len(row)} if stateful else {}
                        if beside is not None and goes_on:
                            beside.launch(prepared)  # what it leaves in the outputs is overwritten
                        self.remember(form.launch(prepared, **more))
            self.settle("the kernel")

        triton_side.take_turn(message.get("turn", 0))
        if message.get("weights"):
            with loaded.load_weights(message["weights"]) as lacking:
                if not lacking:
                    run()
                return {"lacking": lacking}
        self.watch.profile(run, kernels=self.gpu and message.get("kernels", False))
        if changed := native.check_rounding(self.rounding):
            return changed
        if not OFF:  # libraries may work here; whose the kernels were is for the parent to judge
            return {"static": self.static, "kernels": self.watch.kernels, "turns": triton_side.take_turn(0)}
        if foreign := [name for name in foreign_libraries(self.site, self.folder) if name not in self.ours]:
            raise Refused("CHEATED", f"a library did the work: it loaded {', '.join(foreign[:4])}")
        return {"static": self.static, "turns": triton_side.take_turn(0)}

    def require_unchanged(self, problem: dict[str, Any], generators: list[Any] | None, calls: list[Any]) -> None:
        """Raises Refused where a call leaves its caller's process otherwise than it was: with another seed, fewer threads, in gradients. Not for what
        Model does by the same names, nor at a first call, when something may be imported.

        problem: what is called, {} where it is none. generators: as they were before, where no call may draw."""
        first, self.was_called = not self.was_called, True
        if first or problem.get("role", "candidate") != "candidate" or problem.get("eager"):
            return
        found = [name for name, value in read_lasting().items() if value != self.lasting[name]]
        drew = generators is not None and read_generators() != generators
        if drew or (problem.get("random") and self.torch.initial_seed() != int(calls[-1][2])):
            found.append("seed")
        if found := [name for name in found if name not in problem.get("text", "")]:
            raise Refused("INCORRECT", f"a call leaves its caller's process otherwise than it was ({', '.join(found)})")

    def remember(self, returned: Any) -> None:
        """Notice where a call returns a tensor that the call before has returned, too."""
        tensors = returned if type(returned) in (tuple, list) else [returned]
        now = [value for value in tensors if type(value) is self.torch.Tensor]
        self.static = self.static or any(last() is value for last in self.last for value in now)
        self.last = [weakref.ref(value) for value in now]

    def plan(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        if message.get("again") and self.planned is not None:
            return self.replan()
        self.forget()
        calls = [self.form.prepare(self.values(c, message["shapes"])) for c in message["calls"]]
        if not self.gpu:
            self.form.launch(calls[0])  # what a candidate does at its first call is not what is timed
            self.planned = ([lambda prepared=prepared: self.form.launch(prepared) for prepared in calls], None, None)
            return {"graph": True}
        neighbours = native.Neighbours(self.neighbours, self.arenas[message["company"]["arena"]][0], message["company"])
        returns = isinstance(self.form, forms.CallAdapter) and self.form.outputs is not None
        for in_place in (True, False) if returns else (False,):
            launch = functools.partial(self.launch_in_place, neighbours) if in_place else self.form.launch
            own = [lambda _stream, prepared=prepared, launch=launch: launch(prepared) for prepared in calls]
            try:
                with self.stream(0):
                    self.planned, self.whole = native.plan_with_neighbours(
                        self.cuda, neighbours, own, self, neighbours_only=message["alone"]
                    )
            except NotInPlace:
                self.whole = None
            if self.whole is not None:
                break
            if in_place:
                self.forget()
                neighbours.returned.clear()
        if neighbours.plain and not self.kept:
            self.copies_in_time = self.copies_in_time or (self.copier is not None and self.copier.copies)
        return {"graph": self.whole is not None, "returned": bool(self.kept)}

    def launch_in_place(
        self, neighbours: Any, prepared: tuple[list[Any], list[tuple[str, torch.Tensor, bool]]]
    ) -> None:
        """A call whose neighbours poison and read what it returns. Raises NotInPlace where that has to be copied."""
        values, outputs = prepared
        returned = self.form.function(*values)
        places = self.copier.find_in_place(returned, outputs)
        if not places:
            raise NotInPlace
        first = places[0][0]
        elsewhere = [place for other, (_, kept) in self.kept.items() if other != first for place in kept]
        if any(
            a < b + m and b < a + n for _, a, n in places for _, b, m in elsewhere
        ):  # one buffer for all calls, or a ring of some
            raise NotInPlace
        neighbours.returned |= {to: place for to, place, _ in places}
        self.kept[first] = returned, places

    def deliver(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy what the planned calls have returned into their outputs, which were read in its place while they were timed."""
        for _, places in self.kept.values():
            for place in places:
                self.cuda.copy(*place)
        self.settle("what was returned")
        return {}

    def profile(self, _message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """One pass of the planned calls under the profiler: what they run was settled before anything showed that it would be watched.

        Answers the kernels where libraries may work. Raises Refused where they may not and did.
        """
        self.watch.profile(lambda: self.time({"repeat": 1}, fds), kernels=True)
        return {"kernels": getattr(self.watch, "kernels", None)}

    def capture(self, launch: Launch) -> Any:
        """A graph by torch's own capture, which keeps its allocator right; None where it is refused, or would draw other numbers."""
        if getattr(self.form, "draws", False):
            return None
        graph = self.graph(keep_graph=True)
        pool = {"pool": self.graphs[0].pool()} if self.graphs else {}  # they run one after another
        try:
            graph.capture_begin(capture_error_mode="relaxed", **pool)
            try:
                launch(self.cuda.streams[0])
            finally:
                graph.capture_end()
        except RuntimeError:
            self.cuda.rt.cudaGetLastError()  # a refused capture leaves an error behind that is not the kernel's
            return None
        self.graphs.append(graph)
        return ctypes.c_void_p(graph.raw_cuda_graph())

    def release(self, graph: ctypes.c_void_p) -> None:
        """Torch's own, freed with what its kernels need (`forget`)."""

    def host(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        prepared = self.form.prepare(self.values(message["calls"][0], message["shapes"]))
        with self.stream(0):
            return {"seconds": self.time_enqueue(lambda: self.form.launch(prepared), message["repeat"])}

    def time(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        copier = self.copier
        if copier is not None:
            copier.restart()
        with self.stream(0):
            answer = super().time(message, fds)
        if copier is None or self.gpu or not copier.copies:
            return answer
        plain, other = copier.plain_ns * 1e-9, copier.other_ns * 1e-9
        return {"seconds": answer["seconds"] - plain - other, "copied": plain, "copied_otherwise": other}

    def map(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        answer = super().map(message, fds)
        self.tell_arguments()
        return answer

    def unmap(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        answer = super().unmap(message, fds)
        self.tell_arguments()
        return answer

    def tell_arguments(self) -> None:
        if self.copier is not None:
            self.copier.arguments = [(first, first + self.sizes[number]) for number, (first, _) in self.arenas.items()]

    def forget(self) -> None:
        super().forget()
        self.kept = {}
        self.graphs = []  # torch frees a graph with its last reference, and must not while it captures another

    def settle(self, what: str) -> None:
        if self.gpu:
            self.cuda.settle(what)

    def stream(self, index: int) -> AbstractContextManager[Any]:
        return self.on_stream(self.streams[index]) if self.gpu else nullcontext()

    def values(self, encoded: list[list[Any]], shapes: list[list[Any]]) -> list[Any]:
        """Like `arguments`, but tensors over the parent's memory; `shapes`: [dtype, extents, strides] of each tensor in order."""
        given: Iterable[list[Any]] = iter(shapes)
        found: list[Any] = []
        for item in encoded:
            if item[0] == "p":
                dtype, *form = next(given)  # type: ignore[call-overload]
                found.append(self.tensor(self.arenas[item[1]][0] + item[2], getattr(self.torch, dtype), *form))
            else:
                found.append(None if item[0] == "n" else item[1])
        return found

    def tensor(self, address: int, dtype: torch.dtype, shape: list[int], strides: list[int]) -> torch.Tensor:
        """A tensor over memory that it does not own."""
        elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        if 0 in shape:
            return self.torch.empty(shape, dtype=dtype, device="cuda" if self.gpu else "cpu")
        count = dtype.itemsize * elements
        if not self.gpu:
            raw = self.torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=self.torch.uint8)
        else:
            raw = self.torch.as_tensor(DeviceMemory(address, count), device="cuda")
        return raw.view(dtype).as_strided(shape, strides)

    def respond(
        self, answer: Callable[[dict[str, Any], list[int]], dict[str, Any]], message: dict, fds: list[int]
    ) -> dict:
        try:
            said = answer(message, fds)
            if self.torch is None or self.copier is None:
                return said
            return said | {"copies": self.copies_in_time, "shares": self.copier.shares}
        except Refused as refusal:
            return {"error": str(refusal), "outcome": refusal.outcome}
        except native.CudaError as error:
            return {"error": str(error), "fatal": True}
        except BaseException as error:  # noqa: BLE001, the candidate may raise anything, SystemExit too
            return {"error": describe_error(error, self.folder if hasattr(self, "folder") else "")}

    def serve(self) -> None:
        requests = {name: getattr(self, name) for name in self.REQUESTS}
        while True:
            message, fds = native.receive(self.channel)
            if message is None:
                return
            self.choose(message.get("candidate", 0))
            answer = self.respond(requests[message["op"]], message, fds)
            native.send(self.channel, native.make_refusal(getattr(self, "cuda", None), message["op"], answer))


def read_switches() -> tuple[Any, bool, bool, bool]:
    import torch

    backends = torch.backends
    return (
        torch.get_default_dtype(), backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, backends.cudnn.enabled,
    )  # fmt: skip


def read_lasting() -> dict[str, Any]:
    """How whatever is called next in this process would compute, by the name that sets it."""
    import torch

    try:
        narrow = torch.get_float32_matmul_precision()
    except RuntimeError:  # somebody has set it by other names
        narrow = ""
    return {
        "set_default_dtype": torch.get_default_dtype(),
        "set_num_threads": torch.get_num_threads(),
        "set_grad_enabled": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": narrow,
        "cudnn": (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled),
    }


def read_generators() -> list[Any]:
    """What changes where numbers are drawn or a seed is set: torch's, Python's and numpy's. Without an operator of torch."""
    import torch

    own = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
    of_numpy = sys.modules["numpy"].random.get_state()[1:3] if "numpy" in sys.modules else ()
    return [*(ctypes.string_at(one.data_ptr(), one.nbytes) for one in own), random.getstate(), *map(str, of_numpy)]


def set_switches(switches: tuple[Any, bool, bool, bool]) -> None:
    import torch

    dtype, convolutions, products, cudnn = switches
    torch.set_default_dtype(dtype)
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products
    torch.backends.cudnn.enabled = cudnn


class NotInPlace(Exception):
    """What a call returned has to be copied before anybody can read it as the spec's output."""


class DeviceMemory:
    """Device memory by its address, in the form that torch.as_tensor takes without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}


def describe_error(error: BaseException, folder: str) -> str:
    """The error with the candidate's own last line: `RuntimeError: ... (candidate.py, line 7)`."""
    line, trace = error.lineno if isinstance(error, SyntaxError) else 0, error.__traceback__
    while trace is not None:
        if folder and trace.tb_frame.f_code.co_filename.startswith(folder):
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f" (candidate.py, line {line})" if line else ""
    text = str(error)[:4000]
    if type(error) is TypeError and ("sort() takes no positional" in text or "unsupported operand" in text):
        text += "; torch's own computing operators are switched off here"
    return f"{type(error).__name__}: {text}{place}"


def find_cudart() -> str:
    """The CUDA runtime that torch brought into this process, so that both see the same errors and streams."""
    with Path("/proc/self/maps").open() as file:
        return next((line.split()[-1] for line in file if "libcudart" in line), "")


# --- the fork server ------------------------------------------------------------------------------------------------------


def build(source: Path, folder: str) -> None:
    """Import the module once; its extensions are built below `folder`. Exits with 1 where that fails, having said why."""
    from torch.utils import cpp_extension

    def run(build_directory: str, verbose: bool, error_prefix: str) -> None:
        # ninja gives each command a process group of its own, which the box refuses: it plans, we run.
        listed = subprocess.run(
            ["ninja", "-C", build_directory, "-t", "commands"], capture_output=True, text=True, check=True
        )
        for line in listed.stdout.splitlines():
            if not line.startswith("ninja: "):
                done = subprocess.run(["sh", "-c", line], cwd=build_directory, capture_output=True, text=True)
                if done.returncode:
                    print(done.stdout + done.stderr, flush=True)
                    raise RuntimeError(error_prefix)

    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    cpp_extension._run_ninja_build = run
    try:
        forms.execute(source)
    except BaseException as error:  # noqa: BLE001, the candidate may raise anything, SystemExit too
        print(describe_error(error, str(source.parent)))
        sys.exit(1)


def use_site(site: str) -> None:
    if site not in sys.path:
        sys.path.append(site)


def warm(libraries: bool) -> None:
    """What every worker needs, once. Nothing here may start a thread or touch CUDA. `libraries`: torch may compute."""
    global OFF
    import torch

    # At its import cpp_extension asks whether CUDA can be used, to warn where it cannot. The answer initialises the
    # driver, and torch refuses CUDA to every fork after that.
    asked, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    names = ["numpy", "torch.utils.cpp_extension"]
    if libraries:  # fake tensors, a profile and a dispatch mode import it: a second or more in every problem's worker
        names += [
            "torch._dynamo",
            "torch.export._trace",
        ]  # a draft's first import of the latter is a quarter of a second
    for name in names:
        if importlib.util.find_spec(name) is not None:
            try:
                importlib.import_module(name)
            except ImportError:  # cpp_extension without setuptools: only a candidate that needs it fails
                continue
    torch.cuda.is_available = asked
    if libraries:
        load_sibling("rounding")
    warnings.simplefilter("ignore")  # torch warns that kernels are replaced
    OFF = frozenset() if libraries else switch_off()


OFF: frozenset[str] = frozenset()


def work(request: dict[str, Any], channel: int) -> None:
    """What a fork does: answers requests, with so many threads."""
    tempfile.tempdir = None  # a package that asked for it at its import (dill) has had the fork server's kept for all
    torch = sys.modules.get("torch")
    if torch is not None and request["threads"] < torch.get_num_threads():  # whoever asks has a few cores only
        torch.set_num_threads(request["threads"])
    PythonRequestLoop(socket.socket(fileno=channel)).serve()


def main() -> None:
    what, *given = sys.argv[1:]
    if what == "zygote":
        descriptor, parent, site, libraries = given
        forks.die_with(int(parent))
        use_site(site)
        gc.disable()  # imports leave next to no garbage, and to look for it takes a fifth of their time
        warm(libraries == "libraries")
        gc.collect()
        gc.enable()
        gc.freeze()  # no worker has to look through a thousand modules for garbage, nor copy their pages to do so
        forks.serve(int(descriptor), GIVEN, work)
    elif what == "build":
        source, folder, site = given
        use_site(site)
        build(Path(source), folder)


if __name__ == "__main__":
    main()
