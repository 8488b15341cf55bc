"""TRUTH: builds, checks and times candidates. Usable without any agent; imports only `kernels`."""
