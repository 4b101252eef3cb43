"""The driver of ``tandemmq bench``: a load on any STOMP broker. The wheel has only this part of ``bench``."""
