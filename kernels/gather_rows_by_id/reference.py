import torch


def reference(table: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out": table[ids.long().clamp_min(0)] * (ids >= 0)[:, None].to(table.dtype)}
