"""AMQP 1.0 (OASIS). Formats: docs/formats/amqp.md; supported features: docs/amqp.md."""
