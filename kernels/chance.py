"""Tests of chance for properties.py: each says how often a right candidate fails it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FALSE_ALARM = 1e-9
"""Probability of a false INCORRECT in one whole `violated_together`: a candidate is verified some ten times in a run,
and one ends it."""


def too_uneven(observed: torch.Tensor, expected: float, spread: float, alarm: float) -> str:
    """Chi-square test of counts that should all be `expected`, on average.

    observed: counts, any shape. spread: variance of one count times k / (k - 1), for k counts whose sum is fixed (of a
    sample of f among d, n times: n f/d (1 - f/d) d/(d - 1)). "" or what was seen, where chance shows so much in at most
    `alarm` of the cases.
    """
    import torch

    k = observed.numel()
    statistic = float((observed.double() - expected).square().sum()) / spread
    chance = float(torch.special.gammaincc(torch.tensor((k - 1) / 2).double(), torch.tensor(statistic / 2).double()))
    if chance >= alarm:
        return ""
    low, high = float(observed.min()), float(observed.max())
    return f"chi-square {statistic:.0f} with {k - 1} degrees of freedom, counts {low:.0f} to {high:.0f}, not {expected:.1f}"


def off_mean(values: torch.Tensor, mean: float, variance: float, alarm: float) -> str:
    """Two-sided test of the mean of independent values with a known mean and variance, by the normal approximation."""
    n = values.numel()
    z = (float(values.double().mean()) - mean) / math.sqrt(variance / n)
    if math.erfc(abs(z) / math.sqrt(2)) >= alarm:
        return ""
    return f"{float(values.double().mean()):.4f} on average, not {mean:.4f} ({z:+.0f} standard errors)"
