"""Topics, durable subscribers and virtual topics."""
