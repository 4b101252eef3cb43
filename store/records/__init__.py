"""Contents of the journal, as values: KahaDB commands and OpenWire message bodies. Pure."""
