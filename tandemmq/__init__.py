"""TandemMQ, a highly available message broker.

Programs use ``tandemmq.client``, locks of others ``tandemmq.locker.contract``, Spark ``tandemmq.pipeline``. In the
source tree the packages below are links to the directories beside this one.
"""

__version__ = "0.1.0"
