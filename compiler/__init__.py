"""How a computation could be done: from what it means (a kernel's reference, a PyTorch module) to CUDA or C++ text."""
