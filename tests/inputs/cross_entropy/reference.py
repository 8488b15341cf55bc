import torch


def reference(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    picked = logits.gather(1, targets.long()[:, None])[:, 0]
    return {"losses": torch.logsumexp(logits, -1) - picked}
