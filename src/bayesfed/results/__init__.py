"""From run folders to tables, comparison with the published numbers, claims and figures; nothing here trains."""
