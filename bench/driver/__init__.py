"""The driver of ``tandemmq bench``: a load on any STOMP broker. The only part of ``bench`` that the wheel has."""
