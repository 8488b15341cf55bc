"""An application in which kernels are worth something: mini-batch training of graph neural networks, as SALIENT does it."""
