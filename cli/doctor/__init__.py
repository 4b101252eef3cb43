"""The examination of a volume for a pair (`tandemmq doctor storage`), and its report.

    storage      the examination: checks, their order, the scratch directory
    mount, locks, names, durability      the checks
    local_probe  steps of one process on the volume; the same for the examiner and for the remote process
    remote_probe the second process, here or on another host, and the wire to it
    report       a check's verdict and sentence

The examination works in a scratch directory on the volume, always removes it, and opens no file of a broker.
"""
