"""The API of operators: JSON below ``/api/v1``, described by an OpenAPI document that is made of the same tables."""
