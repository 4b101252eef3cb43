"""What the journal holds, as values: KahaDB commands and OpenWire message bodies. Pure."""
