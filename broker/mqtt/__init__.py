"""State that MQTT keeps beyond a connection: retained messages, and sessions whose clients are away."""
