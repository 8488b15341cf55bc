import torch


def reference(probabilities: torch.Tensor, top_p: torch.Tensor) -> dict[str, torch.Tensor]:
    """probabilities [rows, vocabulary], top_p [rows] -> [rows, vocabulary]."""
    falling = probabilities.sort(dim=-1, descending=True).values
    reached = falling.cumsum(-1) >= top_p[:, None]
    least = falling.gather(1, reached.int().argmax(-1, keepdim=True))
    kept = torch.where(probabilities >= least, probabilities, 0)
    return {"out": kept / kept.sum(-1, keepdim=True)}
