import torch


def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": torch.logsumexp(x, dim=-1)}
