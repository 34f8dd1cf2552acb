"""What the speed claims rest on. `make bench` runs all of it."""

import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as a training job has it, and before torch starts CUDA
