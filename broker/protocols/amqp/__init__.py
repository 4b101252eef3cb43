"""AMQP 1.0 (OASIS): docs/formats/amqp.md has the formats, docs/amqp.md what is served."""
