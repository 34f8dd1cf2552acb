"""Measurements behind the speed claims. `make bench` runs all of it."""
