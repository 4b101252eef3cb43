"""Resources of the process and its machine: memory, file descriptors, garbage collection, time zone, log, lag of the
event loop."""
