"""Who is master: one file a kind of lock."""
