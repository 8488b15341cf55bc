"""A candidate of a problem: a Python module that defines `ModelNew`, with its native code in string constants.

    import torch
    from torch import nn

    CUDA_SOURCE = r'''
    extern "C" void scale_rows(const float* x, float* out, int64_t rows, int64_t width, float by, cudaStream_t stream)
    { ... scale_rows_kernel<<<...,  stream>>>(...); }
    '''
    CPP_SOURCE = r'''
    extern "C" void scale_rows(const float* x, float* out, int64_t rows, int64_t width, float by) { ... }
    '''
    native = load_native(globals())

    class ModelNew(nn.Module):
        def __init__(self, ...): ...      # as Model's
        def forward(self, x):             # as Model's
            out = torch.empty_like(x)
            native.scale_rows(x, out, x.shape[0], x.shape[1], 2.0)
            return out

- `CUDA_SOURCE`, `CPP_SOURCE`: plain string literals at the module's top level, each at most once. They are read from the
  syntax tree, so nothing is executed to find them. On a GPU CUDA_SOURCE is compiled by nvcc as backends/cuda.py does, on
  a CPU CPP_SOURCE by g++ as backends/cpu.py does (C++17, OpenMP; `<cstdint>` must be included by the source). A candidate
  may leave out both (Triton; `torch.utils.cpp_extension`, which is built in the compiler's box; torch alone).
- `load_native(globals())` is put into the module's namespace before it is executed. It answers an object whose attributes
  are the library's functions: C linkage, returning nothing. It raises RuntimeError where this device's constant is missing.
  An attribute that the library does not export raises AttributeError.
- A call passes its positional arguments in order: a tensor as the address of its first element (it must be contiguous and
  on the candidate's device, else ValueError), None as a null pointer, an int or a bool as `int64_t`, a float as `float`;
  an instance of a ctypes type as it is (`ctypes.c_double(0.1)`, `ctypes.c_int32(3)`, `ctypes.c_void_p(t.data_ptr())` for a
  tensor whose strides the kernel knows). On a GPU torch's current stream is appended as the last argument.
- `ModelNew(*get_init_inputs())` is constructed on the CPU under the seed under which Model was, so it must draw the same
  random numbers in the same order (the same submodules in the same order do); then `.to(device)`, training mode as it
  comes, `forward` under `no_grad`. Derived tensors (transposed weights, folded constants) may be prepared in `__init__`, as
  buffers (`register_buffer(..., persistent=False)`), so that `.to(device)` moves them.
- `forward` takes what Model's takes: new tensors in each call, contiguous, and it may not change them. It returns what
  Model's returns: one tensor, or a tuple or list of them, of the same shapes and dtypes. It is also called with other
  leading sizes, where Model takes them, so it reads sizes from its arguments. It may not synchronise (calls are
  captured in a CUDA graph where that is possible).
- In a problem whose outputs are random (live dropout) torch's generator is set to the same state before Model's and
  ModelNew's forward: the same draws of the same shapes in the same order give the same masks.
"""
