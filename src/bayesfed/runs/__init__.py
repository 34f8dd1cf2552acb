"""One run: its file, its checks, its schedule and the record that it leaves."""
