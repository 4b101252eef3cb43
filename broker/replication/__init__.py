"""A set of brokers without a shared volume: the master's journal on the disks of a quorum."""
