"""Metrics of a predictor on a set of labelled images."""
