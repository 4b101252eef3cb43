"""Settings of the operator. Imports no other part of the broker."""
