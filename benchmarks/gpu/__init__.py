"""Measurements that need a GPU, in three calls of some minutes each, and the way of the data there.

`docs/gpu.md` says what for.
"""
