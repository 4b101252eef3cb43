"""Logins and rights: users and groups from a file or a directory, rights, TLS.

`broker.core.access` declares the interface; this package implements it with files, threads and a clock.
"""
