"""HBFL's findings."""
