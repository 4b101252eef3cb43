"""The web console: static files that ask the API. Nothing is made here, and nothing comes from elsewhere."""
