"""Formats of ActiveMQ beside its messages: the index in db.data, and the Java objects in its journal."""
