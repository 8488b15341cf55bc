"""A batch whose requests hold equally many full pages, which lie anywhere in the cache."""

import torch


def batch_of(shape, sizes, generator):
    return torch.arange(shape[0]) // (16 * sizes["pages_each"])


def position_of(shape, sizes, generator):
    return torch.arange(shape[0]) % (16 * sizes["pages_each"])


def page_of(shape, sizes, generator):
    return torch.randperm(shape[0], generator=generator)


def first_page_of(shape, sizes, generator):
    return torch.arange(shape[0]) * sizes["pages_each"]


def last_page_of(shape, sizes, generator):
    return torch.full(shape, 16)
