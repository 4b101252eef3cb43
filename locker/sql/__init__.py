"""Locks in a database."""
