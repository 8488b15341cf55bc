"""Texts as trees, places in them, integer polynomials; edits that keep what they do not touch."""
