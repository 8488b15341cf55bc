"""How harness/farside/python_worker.py calls a candidate: what it takes of the spec's arguments, and what it may return.

Runs on the far side, boxed, with nothing of the project on its path.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


PACK_BYTES = 16
"""What the consumer of a timed call reads at once (probes/company.cu)."""


class CandidateRefused(Exception):
    """What the candidate is, or did, has an outcome of its own."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class OutputCopier:
    """Copies what a candidate returned into the spec's outputs, after looking at what it really is.

    A user's call has no such copy: on a CPU its time is told apart from that of the calls, on a GPU a timed call's consumer reads
    what was returned in its place, and the copy is made behind them all (`find_in_place`).
    """

    def __init__(self) -> None:
        import torch

        base = torch._C.TensorBase
        self.tensor, self.parameter, self.strided = torch.Tensor, torch.nn.Parameter, torch.strided
        self.shape, self.dtype, self.device, self.layout = (
            vars(base)[name].__get__ for name in ("shape", "dtype", "device", "layout")
        )
        self.address, self.copy, self.storage = base.data_ptr, base.copy_, base.untyped_storage
        self.count = base.numel
        self.contiguous, self.negative, self.conjugate = base.is_contiguous, base.is_neg, base.is_conj
        self.clock, self.random = time.perf_counter_ns, os.urandom
        self.copies = False
        """Whether anything was copied yet."""
        self.shares = False
        """Whether something returned lay in the memory of an argument."""
        self.has_more = False
        """Whether it may return more tensors behind the outputs, which nobody looks at: an engine's function is as it is."""
        self.move: Callable[[int, int, int, int], int] | None = None
        """`take_output` of probes/calls.cpp; torch's copy where there is none."""
        self.arguments: list[tuple[int, int]] = []
        """Memory of the caller's arguments, [first, last) each."""
        self.plain_ns = self.other_ns = 0
        """Nanoseconds of copies since `restart`: of new memory that is laid out as the output is, which costs a user nothing, and
        of all else (views of an argument, other strides, what is negated or conjugated when it is read), which do work in the copy."""

    def restart(self) -> None:
        self.plain_ns = self.other_ns = 0

    def __call__(self, returned: Any, outputs: list[tuple[str, torch.Tensor, bool]]) -> None:
        """`outputs`: (name, the buffer, whether it is an inout). Raises CandidateRefused."""
        if returned is None and all(inout for _, _, inout in outputs):
            return  # in place
        began = self.clock()
        plain = True
        got, outputs = self._several(returned, outputs)
        if len(got) != len(outputs):
            raise CandidateRefused("WRONG_SHAPE", f"returned {len(got)} values, should be {len(outputs)} tensors")
        for value, (name, buffer, inout) in zip(got, outputs, strict=True):
            if value is buffer and inout:
                continue
            like, shares = self._look(value, name, buffer, inout)
            self.copies = True
            plain = plain and like and not shares
            if self.move is None or not like:
                self.copy(buffer, value)
            elif self.move(
                self.address(buffer), self.address(value), buffer.nbytes, int.from_bytes(self.random(8), "little")
            ):
                raise CandidateRefused("CHEATED", f"{name} was still written to after the call had returned it")
        if plain:
            self.plain_ns += self.clock() - began
        else:
            self.other_ns += self.clock() - began

    def find_in_place(
        self, returned: Any, outputs: list[tuple[str, torch.Tensor, bool]]
    ) -> list[tuple[int, int, int]] | None:
        """(address of the output, of what was returned for it, bytes) each, where whoever reads the output can read that instead: new memory,
        laid out and aligned as the output is. None where it has to be copied. Raises CandidateRefused as a copy does."""
        got, outputs = self._several(returned, outputs)
        if returned is None or len(got) != len(outputs):
            return None
        places = []
        for value, (name, buffer, inout) in zip(got, outputs, strict=True):
            if value is buffer and inout:
                continue
            like, shares = self._look(value, name, buffer, inout)
            if not like or shares or self.address(value) % PACK_BYTES:
                return None
            places.append((self.address(buffer), self.address(value), buffer.nbytes))
        return places

    def _several(
        self, returned: Any, outputs: list[tuple[str, torch.Tensor, bool]]
    ) -> tuple[list[Any], list[tuple[str, torch.Tensor, bool]]]:
        """What was returned, and the outputs that it is for: those not handed in, where there is one for each of these."""
        got = list(returned) if type(returned) in (tuple, list) else [returned]
        fresh = [one for one in outputs if not one[2]]
        if len(got) < len(outputs) and len(got) == len(fresh):
            return got, fresh  # an inout is changed in place
        return (got[: len(outputs)] if self.has_more else got), outputs

    def _look(self, value: Any, name: str, buffer: torch.Tensor, inout: bool) -> tuple[bool, bool]:
        """Whether it is laid out as the output is, and whether it lies in an argument's memory. Raises CandidateRefused."""
        self.require_tensor(value, name, buffer)
        storage, at = self.storage(value), self.address(buffer)
        begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if not inout and begin < at + buffer.nbytes and at < end:
            raise CandidateRefused(
                "CHEATED", f"{name} lies in the memory that it is copied to, which no user's call has"
            )
        like = self.contiguous(buffer) and not inout and self.is_plain(value)
        shares = any(begin < last and start < end for start, last in self.arguments)
        self.shares = self.shares or (shares and not inout)
        return like, shares

    def is_plain(self, value: Any) -> bool:
        """Whether it lies in memory as it is read."""
        return self.contiguous(value) and not self.negative(value) and not self.conjugate(value)

    def require_tensor(self, value: Any, name: str, buffer: torch.Tensor) -> None:
        kind = type(value)
        if kind is not self.tensor and kind is not self.parameter:  # a module may return a weight of its own
            if isinstance(value, self.tensor) or hasattr(kind, "__torch_function__"):
                raise CandidateRefused(
                    "CHEATED", f"{name} is a {kind.__name__}, which may compute when it is looked at"
                )
            raise CandidateRefused("WRONG_SHAPE", f"{name} is a {kind.__name__}, not a tensor")
        if value.__dict__:
            raise CandidateRefused(
                "CHEATED", f"{name} carries attributes of its own: {', '.join(sorted(value.__dict__))}"
            )
        if self.device(value) != self.device(buffer):
            raise CandidateRefused(
                "WRONG_SHAPE", f"{name} is on {self.device(value)}, should be on {self.device(buffer)}"
            )
        if self.layout(value) != self.strided or (self.count(value) and not self.address(value)):
            raise CandidateRefused("CHEATED", f"{name} has no memory of its own")
        if self.dtype(value) != self.dtype(buffer):
            raise CandidateRefused("WRONG_DTYPE", f"{name} is {self.dtype(value)}, should be {self.dtype(buffer)}")
        if self.shape(value) != self.shape(buffer):
            is_, wanted = list(self.shape(value)), list(self.shape(buffer))
            raise CandidateRefused("WRONG_SHAPE", f"{name} has shape {is_}, should be {wanted}")


def gather_values(values: list[Any], places: Any) -> Any:
    """The value at a place, or lists of them as the places stand in lists."""
    return [gather_values(values, one) for one in places] if isinstance(places, list) else values[places]


def _flat(places: Any) -> list[int]:
    return [found for one in places for found in _flat(one)] if isinstance(places, list) else [places]


class CallAdapter:
    """How to call the candidate: which of the spec's arguments it takes, and what becomes of what it returns."""

    def __init__(
        self, function: Callable[..., Any], picked: list[Any], outputs: list[tuple[str, int, bool]] | None
    ) -> None:
        """picked: places of the spec's arguments, in lists where the function takes a list of tensors."""
        self.function, self.picked, self.outputs = function, picked, outputs
        self.copier = OutputCopier()

    def prepare(self, values: list[Any]) -> tuple[list[Any], list[tuple[str, torch.Tensor, bool]]]:
        outputs = [(name, values[at], inout) for name, at, inout in self.outputs or []]
        return [gather_values(values, at) for at in self.picked], outputs

    def launch(self, prepared: tuple[list[Any], list[tuple[str, torch.Tensor, bool]]]) -> Any:
        """Call; answers what the candidate returned."""
        values, outputs = prepared
        returned = self.function(*values)
        if self.outputs is not None:
            self.copier(returned, outputs)
        return returned


def positional(function: Any) -> int | None:
    """How many positional arguments a callable takes at most; None where it does not say."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        text = (getattr(function, "__doc__", None) or "").partition("->")[0]  # pybind11 writes the signature there
        inside = re.search(r"\((.*)\)", text, re.DOTALL)
        return None if inside is None else len(re.findall(r"\w+: ", inside[1]))
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )


def take_arguments(parameters: list[str], needed: int, names: list[str], kinds: list[str]) -> list[int] | None:
    """Which of the spec's arguments a Python function of those positional parameters takes, the first `needed` without defaults: all, all but
    the sizes, or the tensors alone; None where neither fits. A parameter with a default is a size only by its name."""
    every = list(range(len(names)))
    orders = every, [at for at in every if kinds[at] != "size"], [at for at in every if kinds[at] == "tensor"]
    for order in orders:
        own = all(
            place < needed or kinds[at] != "size" or parameters[place] == names[at]
            for place, at in enumerate(order[: len(parameters)])
        )
        if needed <= len(order) <= len(parameters) and own:
            return order
    return None


def take_inputs(parameters: list[str], needed: int, arguments: list[list[Any]]) -> list[int] | None:
    """Which of the spec's arguments ([kind, name, role] each) a Python function takes that returns the outputs, as engines' own do: by name, where
    it needs no other and has no parameter for an output; None where it is another kind of function."""
    parameters = [name.lower() for name in parameters]  # a spec's names are
    places = {name: at for at, (_, name, *_) in enumerate(arguments)}
    outputs = {name for _, name, role, *_ in arguments if role == "output"}
    known = [name for name in parameters if name in places]
    if (
        not outputs
        or outputs & set(known)
        or not set(parameters[:needed]) <= set(known)
        or known != parameters[: len(known)]
    ):
        return None
    inputs = {name for kind, name, role, *_ in arguments if kind == "tensor" and role in ("input", "inout")}
    return [places[name] for name in known] if inputs <= set(known) else None


class Signature:
    """The spec's arguments as the parent sent them: [kind, name, role, list that it is in or "", which list of a list or None] each."""

    def __init__(self, arguments: list[list[Any]], entry: str) -> None:
        self.arguments, self.entry = arguments, entry
        self.names = [name for _, name, *_ in arguments]
        self.outputs = [
            (n, at, role == "inout") for at, (kind, n, role, *_) in enumerate(arguments) if role in ("output", "inout")
        ]
        self.lists = self._lists()

    def _lists(self) -> dict[int, list[Any]]:
        """Place of the first tensor of each list -> places of all, in lists of lists where it is one."""
        found: dict[str, tuple[int, list[Any]]] = {}
        for at, (_, _, _, name, place) in enumerate(self.arguments):
            if name:
                held = found.setdefault(name, (at, []))[1]
                if place is not None:
                    held += [[] for _ in range(place + 1 - len(held))]
                (held if place is None else held[place]).append(at)
        return dict(found.values())

    def gathered(self, picked: list[int]) -> list[Any]:
        """Places of arguments, those of a list's tensors as the list."""
        inside = {at for at, (_, _, _, name, _) in enumerate(self.arguments) if name}
        return [self.lists.get(at, at) for at in picked if at in self.lists or at not in inside]

    def at(self, wanted: Callable[[str, str], bool]) -> list[int]:
        return [at for at, (kind, _, role, *_) in enumerate(self.arguments) if wanted(kind, role)]

    def returning(self, function: Callable[..., Any], count: int | None) -> CallAdapter:
        """Takes the inputs in order, and the scalars behind them where it has room; returns the outputs."""
        inputs = self.at(lambda kind, role: kind == "tensor" and role in ("input", "inout"))
        scalars = self.at(lambda kind, _role: kind == "scalar")
        room = len(inputs) + len(scalars)
        return CallAdapter(
            function, inputs + scalars if scalars and count is not None and count >= room else inputs, self.outputs
        )

    def returning_more(self, function: Callable[..., Any], count: int | None) -> CallAdapter:
        """Of an engine's function that returns the outputs, and perhaps more: takes all other arguments in order, those without the sizes or the inputs."""
        every = self.at(lambda _kind, role: role != "output")
        orders = (
            every,
            [at for at in every if self.arguments[at][0] != "size"],
            [at for at in every if self.arguments[at][0] == "tensor"],
        )
        picked = next((order for order in orders if len(order) == count), None)
        if picked is None:
            raise CandidateRefused("MISSING_ENTRY", f"{self.entry} takes {count} arguments, which fits neither {len(orders[0])} (all but the outputs), "
                          f"{len(orders[1])} (without sizes) nor {len(orders[2])} (inputs)")  # fmt: skip
        return self._of_engine(function, picked, self.outputs)

    @staticmethod
    def _of_engine(
        function: Callable[..., Any], picked: list[Any], outputs: list[tuple[str, int, bool]]
    ) -> CallAdapter:
        adapter = CallAdapter(function, picked, outputs)
        adapter.copier.has_more = True
        return adapter

    def writing(self, function: Callable[..., Any]) -> CallAdapter:
        """Takes every argument in order, all but the sizes or the tensors alone, by how many it takes; writes the outputs."""
        every = list(range(len(self.arguments)))
        try:
            found = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            found = []
        if not found or any(one.kind is one.VAR_POSITIONAL for one in found):
            return CallAdapter(function, every, None)
        found = [one for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        needed = sum(one.default is one.empty for one in found)
        parameters = [one.name for one in found]
        if self.lists:
            return self._with_lists(function, needed, len(parameters))
        if (named := take_inputs(parameters, needed, self.arguments)) is not None:
            return CallAdapter(function, named, self.outputs)
        picked = take_arguments(parameters, needed, self.names, [kind for kind, *_ in self.arguments])
        return CallAdapter(function, every if picked is None else picked, None)

    def _with_lists(self, function: Callable[..., Any], least: int | None, most: int | None) -> CallAdapter:
        """Of a function that takes lists of tensors: every argument in order, all but the sizes or the tensors alone."""
        counts = []
        for left_out in ((), ("size",), ("size", "scalar")):
            picked = self.gathered([at for at, (kind, *_) in enumerate(self.arguments) if kind not in left_out])
            counts.append(len(picked))
            if most is None or least is None or least <= len(picked) <= most:
                return CallAdapter(function, picked, None)
        raise CandidateRefused("MISSING_ENTRY", f"{self.entry} takes {most} arguments, which fits neither {counts[0]} (all, each list as one), "
                      f"{counts[1]} (without sizes) nor {counts[2]} (tensors)")  # fmt: skip

    def fitting(self, function: Callable[..., Any], names: list[str] | None, count: int | None) -> CallAdapter:
        """What an extension that binds itself takes: by name where its schema has our names, else by number."""
        places = {name: at for at, (_, name, _, inside, _) in enumerate(self.arguments) if not inside}
        places |= {self.arguments[at][3]: at for at in self.lists}
        if names is not None and set(names) <= set(places):
            picked = self.gathered([places[name] for name in names])
            given = set(_flat(picked))
            if {at for _, at, _ in self.outputs} <= given:
                return CallAdapter(function, picked, None)
            return self._of_engine(function, picked, [one for one in self.outputs if one[2] or one[1] not in given])
        if self.lists:
            return self._with_lists(function, count, count)
        every = list(range(len(self.arguments)))
        tensors = self.at(lambda kind, _role: kind == "tensor")
        with_scalars = self.at(lambda kind, _role: kind != "size")
        inputs = self.at(lambda kind, role: kind == "tensor" and role in ("input", "inout"))
        for picked in (every, with_scalars, tensors):
            if count in (None, len(picked)):
                return CallAdapter(function, picked, None)
        if count == len(inputs):
            return self._of_engine(function, inputs, self.outputs)
        raise CandidateRefused("MISSING_ENTRY", f"{self.entry} takes {count} arguments, which fits neither {len(every)} (all), "
                      f"{len(tensors)} (tensors) nor {len(inputs)} (inputs)")  # fmt: skip


def module_form(folder: str, signature: Signature, device: str) -> CallAdapter:
    """The candidate's function of the entry's name, else its ModelNew."""
    extensions = Path(folder) / "extensions"
    if extensions.is_dir():
        use_prebuilt(extensions)
    module = execute(Path(folder) / "candidate.py")
    function = getattr(module, signature.entry, None)
    if isinstance(function, type) and hasattr(function, "apply") and hasattr(function, "forward"):
        function = apply_of(function)
    if callable(function):
        return signature.writing(function)
    model = getattr(module, "ModelNew", None)
    if model is None:
        raise CandidateRefused(
            "MISSING_ENTRY", f"the module defines neither a function {signature.entry} nor a class ModelNew"
        )
    inputs = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    made = model(*inputs).to(device)
    return signature.returning(made, positional(made.forward))


def apply_of(function: Any) -> Callable[..., Any]:
    """A torch.autograd.Function as a function of what its forward takes beside the context."""

    def apply(*given: Any) -> Any:
        return function.apply(*given)

    parameters = list(inspect.signature(function.forward).parameters.values())
    own = parameters[1:] if parameters and parameters[0].name == "ctx" else parameters
    apply.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return apply


def execute(path: Path) -> types.ModuleType:
    """The module, where it is one of several beside the others: by its name among them."""
    beside, name = path.with_name("modules"), path.with_name("name.txt")
    if beside.is_dir():
        sys.path.insert(0, str(beside))
    own = name.read_text() if name.is_file() else "candidate"
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = sys.modules[own] = module
    spec.loader.exec_module(module)
    return module


def extension_form(path: str, signature: Signature) -> CallAdapter:
    """The entry that a torch extension binds by PYBIND11_MODULE or registers by TORCH_LIBRARY."""
    import torch

    before = set(torch._C._dispatch_get_all_op_names())
    if (written := _extension("candidate_call", path)) is not None:  # backends/torch_extension.py
        function = getattr(written, signature.entry)
        names = parameter_names(function)
        return signature.fitting(function, names, len(names))
    if (bound := _extension("candidate", path)) is None:
        torch.ops.load_library(path)
    registered = sorted(set(torch._C._dispatch_get_all_op_names()) - before)
    for name in registered:
        namespace, _, base = name.partition("::")
        if base == signature.entry:
            operator = getattr(getattr(torch.ops, namespace), base)
            names = [argument.name for argument in operator.default._schema.arguments]
            return signature.fitting(operator.default, names, len(names))
    function = getattr(bound, signature.entry, None)
    if function is None:
        public = [name for name in dir(bound) if not name.startswith("_")] if bound else []
        have = ", ".join([*public, *registered]) or "nothing"
        raise CandidateRefused("MISSING_ENTRY", f"the extension binds no {signature.entry} (it binds {have})")
    said = (getattr(function, "__doc__", None) or "").partition("->")[0]  # pybind11 writes the parameters' types there
    inputs = signature.at(lambda kind, role: kind == "tensor" and role in ("input", "inout"))
    tensors = signature.at(lambda kind, _role: kind == "tensor")
    if said.count("Tensor") == len(inputs) < len(tensors):
        return signature.returning_more(function, positional(function))
    return signature.fitting(function, None, positional(function))


def _extension(name: str, path: str) -> Any:
    """The Python module of that name in a library; None where it holds none."""
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        if f"PyInit_{name}" not in str(error):
            raise
        return None
    return module


def parameter_names(function: Any) -> list[str]:
    """Of one that pybind11 bound, which writes its signature into its documentation."""
    said = (getattr(function, "__doc__", None) or "").partition("->")[0]
    return re.findall(r"[(,] ?(\w+): ", said)


def use_prebuilt(extensions: Path) -> None:
    """`load` and `load_inline` find what the build step made: this process may not start a compiler."""
    from torch.utils import cpp_extension

    def prebuilt(name: str, *arguments: Any, **keywords: Any) -> Any:
        given = inspect.signature(original).bind(name, *arguments, **keywords).arguments
        folder = extensions / name
        if not (folder / f"{name}.so").exists():
            raise ImportError(f"the extension {name!r} was not built when the module was imported in the build step")
        return cpp_extension._import_module_from_library(name, str(folder), given["is_python_module"])

    original = cpp_extension._jit_compile
    cpp_extension._jit_compile = prebuilt
    cpp_extension._get_build_directory = lambda name, verbose: str(extensions / name)
    writes = cpp_extension._maybe_write if hasattr(cpp_extension, "_maybe_write") else None
    if writes is not None:
        cpp_extension._maybe_write = lambda filename, content: None  # type: ignore[assignment]


# --- a problem's candidate, with its native code -----------------------------------------------------------------------


def load_module(made: Path, device: str) -> types.ModuleType:
    """The candidate's module, which defines ModelNew. Raises CandidateRefused."""
    extensions = made / "extensions"
    if extensions.is_dir():
        use_prebuilt(extensions)
    module = candidate(made, device)
    if not isinstance(getattr(module, "ModelNew", None), type):
        raise CandidateRefused("MISSING_ENTRY", "the module defines no class ModelNew")
    return module


def candidate(folder: Path, device: str) -> types.ModuleType:
    """The candidate's module, executed with `load_native` in its namespace."""
    path = folder / "candidate.py"
    module = types.ModuleType("candidate")
    module.__file__ = str(path)
    module.load_native = lambda namespace: NativeFunctions(folder / "native.so", device)  # type: ignore[attr-defined]
    sys.modules["candidate"] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


class NativeFunctions:
    """The functions of a candidate's library by name; see backends/model_new.py for what they take."""

    def __init__(self, path: Path, device: str) -> None:
        if not path.exists():
            source = "CUDA_SOURCE" if device == "cuda" else "CPP_SOURCE"
            raise RuntimeError(f"the candidate has no {source}, which load_native() needs on this device")
        self._library, self._device, self._path = ctypes.CDLL(str(path)), device, str(path)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise AttributeError(f'the candidate\'s native source exports no extern "C" {name}') from None
        function.restype = None
        call = native_call(function, self._device)
        self.__dict__[name] = call
        return call

    def host(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward` as one native call where the build made that of it (host.py), else as it is."""
        library = ctypes.PyDLL(self._path)
        return native_forward(library, forward) if hasattr(library, "host_bind") else forward


def native_forward(library: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Forward by the library's host; Python's where that cannot be had, and for what it does not take."""
    bound: list[Callable[..., Any]] = []
    taken, defaults = forward.__code__.co_argcount - 1, forward.__defaults__ or ()

    def bind() -> Callable[..., Any]:
        import torch

        objects, make = library.host_objects, library.host_bind
        objects.restype, make.restype = ctypes.c_char_p, ctypes.py_object
        make.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        probe = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        found = eval(objects().decode(), forward.__globals__)
        try:
            return make(found, probe, probe._cdata, torch.Tensor, torch.nn.Parameter)
        except ImportError:
            return lambda *given: NotImplemented

    @functools.wraps(forward)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if not bound:
            bound.append(bind())
        left_out = defaults[len(given) - taken :] if len(given) < taken else ()
        answer = NotImplemented if named else bound[0](self, *given, *left_out)
        return forward(self, *given, **named) if answer is NotImplemented else answer

    return call


def native_call(function: Any, device: str) -> Callable[..., None]:
    import torch

    simple = ctypes._SimpleCData
    tensor_type, parameter_type = torch.Tensor, torch.nn.Parameter
    pointer, whole, single = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

    def encoded(value: Any, place: int) -> Any:
        kind = type(value)
        if kind is tensor_type or kind is parameter_type:
            if value.device.type != device or not value.is_contiguous():
                fault = f"on {value.device}" if value.device.type != device else "not contiguous"
                raise ValueError(f"argument {place} of {function.__name__} is {fault}")
            return pointer(value.data_ptr())
        if kind is int or kind is bool:
            return whole(value)
        if kind is float:
            return single(value)
        if value is None:
            return pointer(0)
        if isinstance(value, simple):
            return value
        raise TypeError(f"argument {place} of {function.__name__} is a {kind.__name__}")

    def call(*arguments: Any) -> None:
        given = [encoded(value, place) for place, value in enumerate(arguments)]
        if device == "cuda":
            given.append(pointer(torch.cuda.current_stream().cuda_stream))
        function(*given)

    return call
