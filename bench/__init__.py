"""Comparisons: TandemMQ and its peers under the same load, on the same machine, in the same run. Not installed."""
