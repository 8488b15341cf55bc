import torch


def softcap_logits(full_logits, final_logit_softcapping):
    full_logits.copy_(torch.tanh(full_logits / final_logit_softcapping) * final_logit_softcapping)


def reference(full_logits, final_logit_softcapping):
    full_logits = full_logits.clone()
    softcap_logits(full_logits, final_logit_softcapping)
    return {"full_logits": full_logits.clone()}
