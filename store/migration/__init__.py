"""Transfer of stores: import, export, hand-back to ActiveMQ."""
