"""Several stores in one broker, as ActiveMQ's mKahaDB: a slow queue pins only its own journal's files.

layout     where the stores are, and what each is called
standbys   all of them followed and promoted as one: every journal is fenced before any is read
stores     the face of one store: each operation goes to the store of its owner
joint      an operation that concerns several stores: two phases, the outcome in txStore
check      all of them checked, and what they say of each other's transactions
"""
