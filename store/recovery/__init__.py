"""Recovery: from the journal and an index to a state, by following the master and by a promotion."""
