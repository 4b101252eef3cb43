"""State of MQTT that outlives a connection: retained messages, wills, and sessions whose clients are away; and the
topics below $SYS."""
