import torch


def transpose(input_data, bias_data, out_data, batch_size, seq_len, weight_num, num_attention_heads, size_per_head):
    out_data.copy_((input_data + bias_data).permute(2, 0, 3, 1, 4))


def reference(input_data, bias_data, weight_num, batch_size, num_attention_heads, seq_len, size_per_head):
    out_data = torch.empty(
        (
            3,
            batch_size,
            num_attention_heads,
            seq_len,
            size_per_head,
        ),
        dtype=input_data.dtype,
        device=input_data.device,
    )
    transpose(input_data, bias_data, out_data, batch_size, seq_len, weight_num, num_attention_heads, size_per_head)
    return {"out_data": out_data}
