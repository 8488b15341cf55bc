from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="interpfaceattrsforwardcuda",
    summary="InterpFaceAttrsForwardCuda of interp_face_attrs.cu",
    entry="InterpFaceAttrsForwardCuda",
    axes=("pix_to_face_0", "face_attrs_0", "face_attrs_2"),
    dtypes=("float32",),
    arguments=(
        Tensor(
            name="pix_to_face", role="input", shape=("pix_to_face_0",), dtype="int64", values=("padded:face_attrs_0",)
        ),
        Tensor(name="barycentric_coords", role="input", shape=("pix_to_face_0", "3"), values=("uniform",)),
        Tensor(name="face_attrs", role="input", shape=("face_attrs_0", "3", "face_attrs_2")),
        Tensor(name="pix_attrs", role="output", shape=("pix_to_face_0", "face_attrs_2")),
        Size(name="pix_to_face_0"),
        Size(name="face_attrs_0"),
        Size(name="face_attrs_2"),
    ),
    workloads=(
        Workload(
            axes={"pix_to_face_0": 1000, "face_attrs_0": 37, "face_attrs_2": 3}, dtype="float32", devices=("cuda",)
        ),
        Workload(
            axes={"pix_to_face_0": 262144, "face_attrs_0": 5000, "face_attrs_2": 3},
            dtype="float32",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(
            axes={"pix_to_face_0": 1048576, "face_attrs_0": 20000, "face_attrs_2": 16},
            dtype="float32",
            devices=("cuda",),
        ),
    ),
)
