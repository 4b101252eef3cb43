"""Resources of the process and its machine: memory, file descriptors, garbage collection, time zone, log, and the
interpreter's lock."""
