"""Topics and durable subscribers."""
