"""Papers as data: experiments, tables, figures, claims and published numbers."""
