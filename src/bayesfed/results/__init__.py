"""From run folders to tables, comparison with print, claims and figures; nothing here trains."""
