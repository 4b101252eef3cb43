"""When a message is due that is to wait. Pure."""
