"""A lock in ZooKeeper."""
