"""The report: one offline page made from a plan and its finished runs, and an RO-Crate beside it."""
