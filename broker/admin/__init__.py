"""Status and health over HTTP."""
