import torch


def _scaled_embedding_bag_impl(qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset, output_dtype):
    rows = (
        qweight.to(torch.float32) * w_scales[:, None] if qweight.dtype != torch.float64 else qweight * w_scales[:, None]
    )[indices]
    bags = torch.searchsorted(offsets, torch.arange(len(indices)), right=True) - 1
    return (torch.zeros(len(offsets) - 1, qweight.shape[1], dtype=rows.dtype).index_add(0, bags, rows) / o_scale).to(
        output_dtype
    )


def reference(qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset):
    output_dtype = torch.float32
    out = _scaled_embedding_bag_impl(
        qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset, output_dtype
    )
    return {"out": out}
