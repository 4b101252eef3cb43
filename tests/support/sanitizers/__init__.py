"""Runs of the C code under the compiler's sanitizers: ``python -m tests.support.sanitizers``."""
