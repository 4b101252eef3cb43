"""Core decides, store remembers, sessions are told: a file for each subject, engine.py where they meet."""
