"""Resources of the process and its machine: memory, descriptors, garbage collection, time zone, the loop's lag."""
