"""A lock in a Kubernetes Lease."""
