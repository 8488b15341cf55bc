import torch


def reference(append_key, append_value, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len, layout):
    page = kv_indices.long()[kv_indptr.long()[batch_indices.long()] + positions.long() // 16]
    place = page * 16 + positions.long() % 16
    pages = kv_indices.shape[0]

    def written(values):
        cache = torch.empty_like(values)
        cache[place] = values
        return cache.view(pages, 16, *values.shape[1:])

    return {"paged_k_cache": written(append_key), "paged_v_cache": written(append_value)}
