"""Write operations as a batch at the end of the journal."""
