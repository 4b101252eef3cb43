"""Stores carried over and given back: import, export, hand-back to ActiveMQ."""
