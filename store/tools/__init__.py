"""What reads a store from outside: check, inspect, why."""
