"""The web console: static files that use the API. Nothing is built here, and nothing is loaded from elsewhere."""
