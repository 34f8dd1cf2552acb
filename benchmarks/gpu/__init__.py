"""Checks and timings that need a GPU, in two calls of some minutes each; `docs/guides/gpu.md` says what for."""
