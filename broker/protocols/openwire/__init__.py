"""OpenWire, versions 1 to 12, as ActiveMQ Classic and its JMS clients speak it.

Read schema.py first: the commands, as a table. types.py describes its notation, codec.py interprets it over loose.py or
tight.py, frames.py cuts a stream into frames, wireformat.py negotiates the form with a peer.
"""
