"""Looks at finished runs: what docs and papers' pages say of them. Nothing is trained here."""
