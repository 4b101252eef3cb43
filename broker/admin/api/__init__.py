"""The API for operators: JSON below ``/api/v1``, described by an OpenAPI document that is made from the same tables."""
