"""PyTorch modules as kernels: how they are loaded, whether they can be solved without computing, their forward in C++."""
