"""Several stores in one broker, as ActiveMQ's mKahaDB: a slow queue pins only its own journal's files.

layout     where the stores are, and what each is called
standbys   all of them followed and promoted as one: every journal is fenced before any is read
stores     the face of one store: each operation goes to the store of its owner
member     one of them, and what waits for it or with it
joint      an operation that concerns several of them: two phases, the outcome in txStore
founding   a new one, made while the others go on
sums       what they say of themselves together
check      all of them checked, and what they say of each other's transactions
"""
