"""Benchmarks: TandemMQ and other brokers under the same load, on the same machine, in the same run. Only
``bench.driver`` is installed."""
