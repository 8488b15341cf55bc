"""Grids, blocks, launches: how many threads there are and how many elements one takes."""
