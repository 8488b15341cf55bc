"""What every numbering must keep: each distinct id once, those of the seeds first and in their order, and a way back."""

import torch


def violated(inputs, outputs, sizes) -> str:
    ids, seeds, capacity = inputs["ids"].long(), sizes["seeds"], sizes["capacity"]
    unique, local, total = outputs["unique"].long(), outputs["local"].long(), int(outputs["total"])
    some = ids >= 0
    distinct = torch.unique(ids[some])
    if total != len(distinct):
        return f"total is {total}, and there are {len(distinct)} distinct ids"
    if total > capacity:  # the caller starts again with more room
        return ""
    if not torch.equal(unique.sort().values, distinct):
        return "unique does not hold every distinct id once"
    if bool((local[~some] != -1).any()):
        return f"local[{int((~some & (local != -1)).nonzero()[0])}] belongs to no id and must be -1"
    if bool(((local[some] < 0) | (local[some] >= total)).any()):
        at = int((some & ((local < 0) | (local >= total))).nonzero()[0])
        return f"local[{at}] is {int(local[at])}, which is no place in unique"
    if bool((unique[local[some]] != ids[some]).any()):
        at = int(some.nonzero().flatten()[(unique[local[some]] != ids[some]).nonzero()[0]])
        return f"ids[{at}] is {int(ids[at])}, but unique[local[{at}]] is {int(unique[local[at]])}"
    # Numbers of seeds in the order of their first places: the running maximum grows by one at each new one.
    own = local[:seeds][some[:seeds]]
    if len(own):
        highest = torch.cummax(own, dim=0).values
        before = torch.cat([highest.new_full((1,), -1), highest[:-1]])
        if bool((own > before + 1).any()):
            return "the ids of the seeds are not numbered first, in the order in which they come"
    return ""
