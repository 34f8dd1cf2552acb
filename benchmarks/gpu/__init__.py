"""Measurements that need a GPU, in two calls of some minutes each. `docs/gpu.md` says what for."""
