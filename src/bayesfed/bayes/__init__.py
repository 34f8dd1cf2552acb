"""Bayesian building blocks."""
