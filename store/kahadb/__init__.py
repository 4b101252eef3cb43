"""Formats of ActiveMQ's store: the index in db.data, and the Java objects in the journal."""
