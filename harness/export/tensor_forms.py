"""How host functions of each form ask their tensors: torch, its stable interface, TVM's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensors:
    """How a form's host function asks its tensors."""

    type: str
    """Type of a parameter, as the source writes it."""
    dtype: str
    size: str
    dims: str
    contiguous: str
    stride: str
    stream: str
    include: str
    names: dict[str, str]
    """dtype -> its name in the form."""
    empty: str = ""
    """What makes a tensor beside another one, of these extents and dtype."""
    makes: str = ""
    """What that needs to be included."""


def _scalar_types(prefix: str) -> dict[str, str]:
    names = {
        "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float8_e4m3fn": "Float8_e4m3fn",
        "float8_e5m2": "Float8_e5m2", "uint32": "UInt32", "uint16": "UInt16", "int64": "Long",
        "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
    }  # fmt: skip
    return {dtype: f"{prefix}{name}" for dtype, name in names.items()}


_DL = {"float": "kDLFloat", "bfloat": "kDLBfloat", "int": "kDLInt", "uint": "kDLUInt"}
_DL_NAMES = {
    **{f"{kind}{bits}": f"DLDataType{{{code}, {bits}, 1}}" for kind, code in _DL.items() for bits in (8, 16, 32, 64)},
    "bool": "DLDataType{kDLBool, 8, 1}",
    "float8_e4m3fn": "DLDataType{kDLFloat8_e4m3fn, 8, 1}",
    "float8_e5m2": "DLDataType{kDLFloat8_e5m2, 8, 1}",
}
FORMS = {
    "torch": Tensors(
        "Tensor", "{0}.scalar_type() == {1}", "{0}.size({1})", "{0}.dim()", "{0}.is_contiguous()", "{0}.stride({1})",
        "at::cuda::getCurrentCUDAStream()", "<ATen/cuda/CUDAContext.h>", _scalar_types("at::ScalarType::"),
        "at::empty({{{1}}}, {0}.options().dtype({2}).requires_grad(false))",
    ),
    "stable": Tensors(
        "Tensor", "{0}.scalar_type() == {1}", "{0}.size({1})", "{0}.dim()", "{0}.is_contiguous()", "{0}.stride({1})",
        "[&] { void* stream = nullptr; aoti_torch_get_current_cuda_stream({leader}.get_device_index(), &stream); return static_cast<cudaStream_t>(stream); }()",
        "<torch/csrc/inductor/aoti_torch/c/shim.h>", _scalar_types("torch::headeronly::ScalarType::"),
        "torch::stable::new_empty({0}, {{{1}}}, {2})", "<torch/csrc/stable/ops.h>",
    ),
    "tvm_ffi": Tensors(
        "TensorView", "{0}.dtype() == {1}", "{0}.shape()[{1}]", "{0}.ndim()", "{0}.IsContiguous()", "{0}.strides()[{1}]",
        "static_cast<cudaStream_t>(TVMFFIEnvGetStream({leader}.device().device_type, {leader}.device().device_id))",
        "<tvm/ffi/extra/c_env_api.h>", _DL_NAMES,
    ),
}  # fmt: skip
