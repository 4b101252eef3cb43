"""From the journal and an index to a state: following the master, promotion."""
