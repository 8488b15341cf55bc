def store(k_cache, v_cache, indices, k, v):
    k_cache[indices] = k
    v_cache[indices] = v


def reference(k_cache, v_cache, indices, k, v):
    k_cache = k_cache.clone()
    v_cache = v_cache.clone()
    store(k_cache, v_cache, indices, k, v)
    return {"k_cache": k_cache.clone(), "v_cache": v_cache.clone()}
