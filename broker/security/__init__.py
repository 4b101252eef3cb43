"""Who may connect, and who may do what: users and groups from a file or a directory, rights, TLS.

The questions stand in `broker.core.access`; here are the answers, which need files, threads and a clock.
"""
