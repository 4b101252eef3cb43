"""The brokers to compare with, each started from what Debian installed, on ports and directories of its own."""
