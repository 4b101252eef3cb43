"""Brokers for comparison, each started from its Debian package, on separate ports and directories."""
