"""FOLA's findings."""
