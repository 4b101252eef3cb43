"""Move stores: import, export, hand-back to ActiveMQ."""
