"""Messages that survive: joins the journal and the index, and owns the one storage thread."""
