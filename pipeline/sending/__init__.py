"""Sending of messages from tables to a broker.

``sends`` converts a row to a SEND, ``pace`` limits the rate, ``ledger`` stores the progress of each slice, ``slices``
sends slices, and ``sink`` runs this in Spark's tasks. An import of this package does not import Spark or Arrow.
"""
