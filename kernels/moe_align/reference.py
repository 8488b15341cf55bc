import torch


def reference(ids: torch.Tensor, experts: int, block: int) -> dict[str, torch.Tensor]:
    flat = ids.flatten().long()
    pairs = flat.numel()
    blocks = (pairs + experts * (block - 1) + block - 1) // block
    counts = torch.bincount(flat, minlength=experts)
    runs = (counts + block - 1) // block * block
    ends = runs.cumsum(0)
    order = flat.argsort(stable=True)
    expert = flat[order]
    behind = torch.arange(pairs) - (counts.cumsum(0) - counts)[expert]
    placed = torch.full((blocks * block,), pairs)
    placed[(ends - runs)[expert] + behind] = order
    begins = torch.arange(blocks) * block
    owner = torch.searchsorted(ends, begins, right=True)
    return {
        "sorted": placed.int(),
        "block_expert": torch.where(begins < ends[-1], owner, -1).int(),
        "total": ends[-1:].int(),
    }
