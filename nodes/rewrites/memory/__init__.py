"""Loads and stores: packs of 16 bytes, rows that do not divide into them, pointers that do not overlap."""
