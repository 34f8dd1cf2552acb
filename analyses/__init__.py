"""Looks at finished runs: what docs and papers' pages say of them. No run is trained here."""
