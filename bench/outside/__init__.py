"""Java test suites of other projects, run against a broker in another process (``bench.suites``)."""
