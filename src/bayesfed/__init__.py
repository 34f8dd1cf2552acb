"""bayesfed: check what four papers claim for Bayesian federated learning, by one pipeline."""

__version__ = "0.1.0"
