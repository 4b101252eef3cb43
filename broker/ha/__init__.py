"""Election of the master: the life of a broker, its lock, its waits, and their detectors."""
