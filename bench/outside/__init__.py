"""Java test suites of other projects against a broker outside of their process: see ``bench.suites``."""
