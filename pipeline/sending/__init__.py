"""Sending of messages from tables to a broker.

``sends`` makes a row a SEND, ``pace`` limits the rate, ``ledger`` keeps the progress of each slice, ``slices`` sends
them, and ``sink`` runs in Spark's tasks. Importing this imports neither Spark nor Arrow.
"""
