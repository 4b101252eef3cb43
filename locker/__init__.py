"""Election of the master: one file for each kind of lock."""
