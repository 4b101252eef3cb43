"""Queues: order, priorities, groups, selectors and browsers."""
