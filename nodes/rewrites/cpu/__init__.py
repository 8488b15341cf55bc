"""C++ with OpenMP: loops that vectorise, share out, and stay in the caches."""
