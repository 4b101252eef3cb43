"""Times of delayed and repeated messages. Pure."""
