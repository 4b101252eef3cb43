"""Java test suites of others against a broker outside of their process: see ``bench.suites``."""
