from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="pad_columnwise_scale_inv",
    summary="pad_columnwise_scale_inv of pad.py",
    axes=("inp_0", "inp_1", "out_0", "out_1"),
    dtypes=("uint8",),
    arguments=(
        Tensor(name="inp", role="input", shape=("inp_0", "inp_1"), values=("integers:0:255",)),
        Tensor(name="out", role="output", shape=("out_0", "out_1")),
        Size(name="inp_0"),
        Size(name="inp_1"),
        Size(name="out_0"),
        Size(name="out_1"),
    ),
    build={"include": ("include",), "binding": "transformer_engine.pytorch.triton.pad"},
    workloads=(
        Workload(axes={"inp_0": 100, "inp_1": 30, "out_0": 128, "out_1": 32}, dtype="uint8", devices=("cuda",)),
        Workload(
            axes={"inp_0": 1000, "inp_1": 129, "out_0": 1024, "out_1": 132},
            dtype="uint8",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(axes={"inp_0": 8000, "inp_1": 1021, "out_0": 8064, "out_1": 1024}, dtype="uint8", devices=("cuda",)),
    ),
)
