"""What the process asks of its machine: memory, descriptors, garbage collection, time zone, the loop's lag."""
