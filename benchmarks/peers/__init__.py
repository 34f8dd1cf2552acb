"""The engine beside other federated-learning libraries, on their own workloads: `python -m benchmarks.peers`."""
