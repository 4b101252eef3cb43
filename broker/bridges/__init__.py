"""Bridges: topics from and to other MQTT brokers."""
