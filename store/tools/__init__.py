"""Tools that read a store from outside: check, inspect, why."""
