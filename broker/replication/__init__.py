"""A set of brokers without a shared volume: a quorum of nodes stores the master's journal on their own disks."""
