"""The engine: the core decides, the store keeps, sessions deliver. Each subject has a file; engine.py joins them."""
