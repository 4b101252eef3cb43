"""Status, health and metrics of a running broker over HTTP, and its reports to systemd.

Tools reach a running broker here, on master and standby alike. This package only reads: its caller passes a callable
that returns the status, and the package knows nothing of engines, stores and locks.
"""
