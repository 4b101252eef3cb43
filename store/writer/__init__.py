"""One write: operations become a batch at the end of the journal."""
