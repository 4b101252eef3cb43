"""Reasons why each journal file is kept, and ways to free it. Reads only."""
