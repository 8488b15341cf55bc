"""How harness/farside/python_worker.py calls a function that a library exports by TVM-FFI's C ABI (SGLang's and FlashInfer's kernels).

Runs on the far side, boxed, with nothing of the project on its path. Nothing of the package `tvm_ffi` is imported: its ABI is a struct of 16 bytes
an argument. A tensor goes as an object of the runtime's, which a function takes as a Tensor and as a TensorView; on a GPU torch's current stream
is set as the environment's before each call.
"""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NONE, INT, BOOL, FLOAT, TENSOR = 0, 1, 2, 3, 70
"""Type indices of TVMFFIAny (tvm/ffi/c_api.h)."""
SMALL_STRING = 11
CPU, CUDA = 1, 2
CODES = {
    "int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12, "float8_e8m0fnu": 14,
}  # fmt: skip
"""DLDataTypeCode (dlpack.h)."""


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor without a deleter: the memory is torch's."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class TensorObject:
    """A tensor as an object of the runtime's, as long as this lives."""

    def __init__(self, runtime: ctypes.CDLL, value: torch.Tensor) -> None:
        self.value, self.runtime, self.handle = value, runtime, ctypes.c_void_p()
        dims = ctypes.c_int64 * max(1, value.dim())
        self.shape, self.strides = dims(*value.shape), dims(*value.stride())
        code, bits = dtype_code(value.dtype)
        on_gpu = value.is_cuda
        tensor = DLTensor(
            value.data_ptr(), CUDA if on_gpu else CPU, value.device.index or 0 if on_gpu else 0, value.dim(), code, bits, 1,
            ctypes.addressof(self.shape), ctypes.addressof(self.strides), 0,
        )  # fmt: skip
        self.managed = ManagedTensor(tensor, None, None)
        if runtime.TVMFFITensorFromDLPack(ctypes.byref(self.managed), 0, 0, ctypes.byref(self.handle)):
            raise RuntimeError(f"TVM-FFI makes no tensor of {value.dtype}")

    def __del__(self) -> None:
        if self.handle:
            self.runtime.TVMFFIObjectDecRef(self.handle)


class FfiValue(ctypes.Union):
    _fields_ = (("integer", ctypes.c_int64), ("number", ctypes.c_double), ("pointer", ctypes.c_void_p))


class FfiArgument(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", FfiValue))


class Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class ErrorCell(ctypes.Structure):
    _fields_ = (("kind", Bytes), ("message", Bytes))


OBJECT_HEADER_BYTES = 24
"""Bytes of TVMFFIObject (counters, type index, deleter); an object's contents come behind."""


def dtype_code(dtype: torch.dtype) -> tuple[int, int]:
    """(DLDataTypeCode, bits)."""
    name = str(dtype).removeprefix("torch.")
    if name in CODES:
        return CODES[name], 8
    letters = name.rstrip("0123456789")
    return CODES[letters], int(name[len(letters) :])


def pack_arguments(runtime: ctypes.CDLL, values: list[Any]) -> tuple[Any, list[Any]]:
    """The arguments as an array of Packed, and what must live as long."""
    array, held = (FfiArgument * max(1, len(values)))(), list[Any]()
    for place, value in zip(array, values, strict=False):
        if type(value) is int or type(value) is bool:
            place.kind, place.value.integer = BOOL if type(value) is bool else INT, int(value)
        elif type(value) is float:
            place.kind, place.value.number = FLOAT, value
        elif value is None:
            place.kind, place.value.integer = NONE, 0
        else:
            held.append(TensorObject(runtime, value))
            place.kind, place.value.pointer = TENSOR, held[-1].handle.value
    return array, held


class Function:
    """An exported function; calling it with an array of Packed raises RuntimeError with its error's kind and message."""

    def __init__(self, library: ctypes.CDLL, runtime: ctypes.CDLL, name: str) -> None:
        self.name, self.runtime = name, runtime
        self.call = getattr(library, f"__tvm_ffi_{name}")
        self.call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
        self.call.restype = ctypes.c_int

    def __call__(self, array: Any, count: int) -> FfiArgument:
        result = FfiArgument()
        if self.call(None, array, count, ctypes.byref(result)):
            raise RuntimeError(self.error())
        return result

    def error(self) -> str:
        handle = ctypes.c_void_p()
        self.runtime.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
        if not handle.value:
            return f"{self.name} failed and said nothing"
        cell = ErrorCell.from_address(handle.value + OBJECT_HEADER_BYTES)
        kind, message = (
            ctypes.string_at(part.data, part.size).decode(errors="replace") for part in (cell.kind, cell.message)
        )
        return f"{kind}: {message}"


def text_of(value: FfiArgument) -> str:
    """The text of a string that a function returned."""
    if value.kind == SMALL_STRING:
        return bytes(value.value)[: value.padding].decode()
    cell = Bytes.from_address(value.value.pointer + OBJECT_HEADER_BYTES)
    return ctypes.string_at(cell.data, cell.size).decode()


def count_of(library: ctypes.CDLL, runtime: ctypes.CDLL, name: str) -> int | None:
    """How many arguments the function takes; None where its library does not say."""
    if not hasattr(library, f"__tvm_ffi__metadata_{name}"):
        return None
    schema = json.loads(text_of(Function(library, runtime, f"_metadata_{name}")((FfiArgument * 1)(), 0)))["type_schema"]
    schema = json.loads(schema) if isinstance(schema, str) else schema
    if "named_args" in schema:
        return len(schema["named_args"]["params"])
    return len(schema["args"]) - 1 if "args" in schema else None  # of older versions; the first is what it returns


def form(forms: Any, path: str, signature: Any, *, gpu: bool) -> Any:
    """The form of the library's function for the entry, or for the entry and a dtype. Raises CandidateRefused."""
    library = ctypes.CDLL(path)
    runtime = ctypes.CDLL("libtvm_ffi.so")  # it is loaded: the library needs it
    known = {}
    for name in (signature.entry, *(f"{signature.entry}_{dtype}" for dtype in DTYPES)):
        if hasattr(library, f"__tvm_ffi_{name}"):
            known[name.removeprefix(signature.entry).removeprefix("_")] = Function(library, runtime, name)
    if not known:
        raise forms.CandidateRefused(
            "MISSING_ENTRY", f"the library exports no {signature.entry} by TVM_FFI_DLL_EXPORT_TYPED_FUNC"
        )
    if signature.lists:
        raise forms.CandidateRefused("MISSING_ENTRY", "a function of TVM-FFI is not called with lists of tensors here")
    count = count_of(library, runtime, next(iter(known.values())).name)
    fitting = signature.fitting(None, None, count)
    if fitting.outputs is not None:
        raise forms.CandidateRefused(
            "MISSING_ENTRY",
            f"{signature.entry} takes inputs only; it must write its outputs into tensors that it is given",
        )
    return TvmForm(known, fitting.picked, runtime, gpu=gpu)


DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint32",
    "uint16",
    "uint8",
    "bool",
)


class TvmForm:
    """Calls with arguments that were packed before: what is timed is the function alone."""

    def __init__(self, known: dict[str, Function], picked: list[int], runtime: ctypes.CDLL, *, gpu: bool) -> None:
        self.known, self.picked, self.runtime, self.gpu, self.outputs = known, picked, runtime, gpu, None
        self.set_stream = runtime.TVMFFIEnvSetStream
        self.set_stream.argtypes = (ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)

    def prepare(self, values: list[Any]) -> tuple[Function, Any, int, list[Any]]:
        array, held = pack_arguments(self.runtime, [values[at] for at in self.picked])
        dtypes = [str(value.dtype).removeprefix("torch.") for value in values if hasattr(value, "dtype")]
        function = next((self.known[name] for name in (*dtypes, "") if name in self.known), None)
        if function is None:
            raise RuntimeError(f"no function for {', '.join(dict.fromkeys(dtypes))} (there is {', '.join(self.known)})")
        return function, array, len(self.picked), held

    def launch(self, prepared: tuple[Function, Any, int, list[Any]]) -> None:
        function, array, count, _held = prepared
        if self.gpu:
            import torch

            device = torch.cuda.current_device()
            self.set_stream(CUDA, device, torch._C._cuda_getCurrentRawStream(device), None)
        function(array, count)
