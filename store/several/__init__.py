"""Several stores in one broker, as ActiveMQ's mKahaDB: a slow queue pins only its own journal's files.

layout     where the stores are, and what each is called
standbys   follow and promote them as one: every journal is fenced before any is read
stores     the interface of one store: each operation goes to the store of its owner
member     one of the stores, and the operations that wait for it
joint      an operation that concerns several stores: two phases, the outcome in txStore
founding   make a new store while the others continue
sums       figures of all stores together
check      check all stores, and their records of each other's transactions
"""
