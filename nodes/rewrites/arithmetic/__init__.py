"""The special-function unit and packed 16-bit arithmetic."""
