from kernels.spec import Scalar, Spec, Tensor, Workload

PAGE = "heads", "dim"
INDEX = {"role": "input", "dtype": "int32", "constant": True}

SPEC = Spec(
    name="append_paged_kv_cache",
    summary="writes every token's key and value into its page (FlashInfer's csrc/page.cu, layout NHD, pages of 16)",
    axes=("batch", "pages_each", "heads", "dim"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="append_key", role="input", shape=("16*batch*pages_each", *PAGE)),
        Tensor(name="append_value", role="input", shape=("16*batch*pages_each", *PAGE)),
        Tensor(name="batch_indices", shape=("16*batch*pages_each",), values=("drawn:batch_of",), **INDEX),
        Tensor(name="positions", shape=("16*batch*pages_each",), values=("drawn:position_of",), **INDEX),
        Tensor(name="paged_k_cache", role="output", shape=("batch*pages_each", "16", *PAGE)),
        Tensor(name="paged_v_cache", role="output", shape=("batch*pages_each", "16", *PAGE)),
        Tensor(name="kv_indices", shape=("batch*pages_each",), values=("drawn:page_of",), **INDEX),
        Tensor(name="kv_indptr", shape=("batch + 1",), values=("drawn:first_page_of",), **INDEX),
        Tensor(name="kv_last_page_len", shape=("batch",), values=("drawn:last_page_of",), **INDEX),
        Scalar(name="layout", ctype="int64_t", value=0),
    ),
    workloads=tuple(
        Workload(axes={"batch": b, "pages_each": p, "heads": 8, "dim": 128}, dtype=t, devices=("cuda",))
        for t in ("float16", "bfloat16")
        for b, p in ((1, 1), (4, 3), (32, 64))
    ),
    build={
        "include": ("include",),
        "flags": ("-std=c++17", "-use_fast_math", "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16"),
    },
)
