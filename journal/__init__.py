"""Append-only log of opaque records in db-N.log files, laid out as KahaDB does. Plain blocking code."""
