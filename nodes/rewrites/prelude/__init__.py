"""CUDA that rewrites bring along, one definition a name."""
