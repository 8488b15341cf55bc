def multi_tensor_scale_cuda(chunk_size, noop_flag, tensor_lists, scale):
    for given, out in zip(*tensor_lists, strict=True):
        out.copy_(given * scale)


def reference(
    noop_flag,
    tensor_lists_0_0,
    tensor_lists_0_1,
    tensor_lists_0_2,
    tensor_lists_1_0,
    tensor_lists_1_1,
    tensor_lists_1_2,
    chunk_size,
    scale,
):
    tensor_lists_1_0 = tensor_lists_1_0.clone()
    tensor_lists_1_1 = tensor_lists_1_1.clone()
    tensor_lists_1_2 = tensor_lists_1_2.clone()
    tensor_lists = [
        [tensor_lists_0_0, tensor_lists_0_1, tensor_lists_0_2],
        [tensor_lists_1_0, tensor_lists_1_1, tensor_lists_1_2],
    ]
    multi_tensor_scale_cuda(chunk_size, noop_flag, tensor_lists, scale)
    return {
        "tensor_lists_1_0": tensor_lists_1_0.clone(),
        "tensor_lists_1_1": tensor_lists_1_1.clone(),
        "tensor_lists_1_2": tensor_lists_1_2.clone(),
    }
