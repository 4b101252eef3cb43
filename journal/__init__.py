"""Append-only log of opaque records in db-N.log files, in KahaDB's layout. Plain blocking code."""
