"""The operator's settings as the values that the parts of the broker read. Each is copied by its name."""
