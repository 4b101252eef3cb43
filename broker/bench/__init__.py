"""The load driver: persistent STOMP load against any broker on a port, and what it measured.

It must cost much less than the broker it measures, on the same machine: raw non-blocking sockets, frames built
and read in bulk, counters in shared memory. It knows STOMP as a client sees it and nothing of our broker,
so that the same bytes go to ActiveMQ and RabbitMQ.
"""
