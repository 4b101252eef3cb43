"""Status, health and metrics of a running broker over HTTP, and its reports to systemd.

A master and a standby have the same pages.
"""
