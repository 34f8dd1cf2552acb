"""What the speed claims rest on. `make bench` runs all of it."""
