"""Reductions over a block: shuffles, one barrier, fused exchanges."""
