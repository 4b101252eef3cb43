"""Messages from tables back to a broker.

``sends`` makes a row a SEND, ``pace`` says when it may go, ``ledger`` keeps how far each slice came, ``slices`` sends
them, and ``sink`` is what Spark runs in its tasks. Importing this imports neither Spark nor Arrow.
"""
