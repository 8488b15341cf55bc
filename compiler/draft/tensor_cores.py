"""CUDA for a tile of a float32 product on tensor cores: as exact as torch's own default, no more.

A tensor core takes TF32: 11 significant bits of float32's 24. Torch lets cuDNN round a convolution's operands to that
(torch.backends.cudnn.allow_tf32 is True) and keeps a matrix product in float32 (torch.backends.cuda.matmul.allow_tf32 is False). So a
convolution is one product of its rounded operands, each to the nearest, and so is a product of halves, which TF32 holds as they are.

In a matrix product of float32s (EXACT) a number goes in as two, a = high + low, each of them TF32, and
a * b as low * high + high * low + high * high ("3xTF32"), which costs three products where float32 has no tensor core at all.

What that loses, u = 2^-24 being float32's unit roundoff: high is the nearest, so |low| <= 2^-11 |a|, and low has at most 12 bits
and keeps 11 of them: 2u |a|. The product low * low that is left out is at most 4u |a b|. Together at most 8u |a b| a product, of
either sign, however many there are: 8u sum |a b|. Adding K products in float32 is bounded by K u sum |a b|, so from K = 8 on this is
the smaller part. Tensor cores do not round to nearest but cut off, which over a long K would add up to one side: so a stage of 32
steps is summed from zero, and then added to the sums so far by an ordinary addition. An instruction adds 8 products to a sum and may cut
each of them and the result below 24 bits of the largest, which is at most 20u of that, and a stage has 4 * 3 instructions: at
most 240u of the stages' sums, independent of K, and far less where signs vary. With cuts like that the emulation finds
errors of 0.5 to 0.7 of plain float32's at K = 512 (tests/nodes/draft/test_tiles.py); a GPU's cut less.

Without EXACT an operand errs by up to 2^-11 of itself, and what K / 8 instructions cut off a sum is the smaller part of the error,
so that all go to one sum, as in cuDNN.

An infinite operand has no low part (it would be NaN), and one next to the largest float32 rounds up to infinity: where a sum is not
finite, the kernel computes that element again by plain multiply-adds (tiles.py).

Below sm_80 the same tiles are multiplied by plain multiply-adds.
"""

THREADS = 256
"""Threads of a block: eight warps."""
DEPTH = 16
"""Steps of a stage where operands are rounded: two blocks of a multiprocessor have room for their tiles."""
