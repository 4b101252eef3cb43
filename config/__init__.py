"""What the operator may say. Imports nothing of ours."""
