"""Store of persistent messages: the journal, the index, and the storage thread that writes both."""
