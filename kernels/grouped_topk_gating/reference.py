import torch


def reference(logits: torch.Tensor, bias: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """logits [tokens, experts], bias [experts] -> weights [tokens, 8], ids [tokens, 8], the best first."""
    scores = torch.sigmoid(logits)
    choice = scores + bias
    groups = choice.view(choice.shape[0], 8, -1)
    group_scores = groups.topk(2, dim=-1).values.sum(-1)
    taken = group_scores >= group_scores.topk(4, dim=-1).values[:, -1:]
    ids = torch.where(taken[..., None], groups, float("-inf")).view(choice.shape).topk(8, dim=-1).indices
    weights = scores.gather(1, ids)
    return {"weights": weights / weights.sum(-1, keepdim=True) * scale, "ids": ids.to(torch.int32)}
