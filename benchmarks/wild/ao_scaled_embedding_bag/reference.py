import torch


def _scaled_embedding_bag_impl(qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset, output_dtype):
    rows = (
        qweight.to(torch.float32) * w_scales[:, None] if qweight.dtype != torch.float64 else qweight * w_scales[:, None]
    )[indices]
    bags = torch.cumsum(
        torch.zeros(len(indices), dtype=torch.int64).index_add(
            0, offsets[1:-1], torch.ones(len(offsets) - 2, dtype=torch.int64)
        ),
        0,
    )
    return (torch.zeros(len(offsets) - 1, qweight.shape[1], dtype=rows.dtype).index_add(0, bags, rows) / o_scale).to(
        output_dtype
    )


def reference(qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset):
    output_dtype = torch.float32
    out = _scaled_embedding_bag_impl(
        qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset, output_dtype
    )
    return {"out": out}
