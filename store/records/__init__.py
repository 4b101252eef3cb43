"""Codecs of the records in the journal: KahaDB commands and OpenWire messages. Pure."""
