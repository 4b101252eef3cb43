"""Pure decisions: queues, topics, subscriptions, transactions, redelivery. No I/O, no clock, no loop, no await."""
