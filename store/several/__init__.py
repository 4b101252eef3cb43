"""Several stores in one broker, as ActiveMQ's mKahaDB: a slow queue pins only files of its own journal.

filters      which store a destination belongs to
layout       directories and names of the stores
standbys     follow and promote all stores: every journal is fenced before any is read
stores       all stores with the interface of one: each operation goes to the store of its owner
member       one of the stores, and the operations that wait for it
joint        an operation on several stores: two phases, with the outcome in txStore
store_maker  makes a new store while the others continue
sums         figures of all stores together
"""
