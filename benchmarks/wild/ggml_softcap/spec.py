from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="softcap_f32_cuda",
    summary="softcap_f32_cuda of softcap.cu",
    axes=("x_0",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0",)),
        Tensor(name="dst", role="output", shape=("x_0",)),
        Scalar(name="scale", ctype="float", value=0.03333333333333333),
        Scalar(name="softcap", ctype="float", value=30.0),
        Size(name="x_0"),
    ),
    build={
        "include": ("ggml-cuda", "include"),
        "binding": "softcap_f32<<<(x_0 + 255) / 256, 256, 0, stream>>>(x, dst, scale, softcap, x_0)",
    },
    workloads=(
        Workload(axes={"x_0": 1000}, dtype="float32", devices=("cuda",)),
        Workload(axes={"x_0": 32000}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 262144}, dtype="float32", devices=("cuda",)),
        Workload(axes={"x_0": 16777216}, dtype="float32", devices=("cuda",)),
    ),
)
