"""Errors, files, random streams, options and plugins: nothing here knows of learning."""
