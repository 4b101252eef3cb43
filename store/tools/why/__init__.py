"""Why each journal file is there, and what lets it go. Reads only."""
