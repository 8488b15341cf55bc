import torch


def reference(grad_out: torch.Tensor, ids: torch.Tensor, sources: int) -> dict[str, torch.Tensor]:
    some = ids >= 0
    shared = grad_out / some.sum(dim=1, keepdim=True).clamp_min(1)
    grad = grad_out.new_zeros(sources, grad_out.shape[1])
    for j in range(ids.shape[1]):
        own = torch.where(some[:, j, None], shared, shared.new_zeros(()))  # not times 0, which a NaN would outlast
        grad.index_add_(0, ids[:, j].long().clamp_min(0), own)
    return {"grad": grad}
