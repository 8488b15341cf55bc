"""CUDA that generated texts call; what rewrites bring along as well is a file of its own."""

from pathlib import Path

CUDA = Path(__file__).parent
