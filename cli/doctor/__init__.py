"""Is this volume fit for a pair? What `tandemmq doctor storage` tries out, and how it reports.

    storage      the examination: which checks, in which order, on which scratch directory
    mount, locks, names, durability      the checks
    local_probe what one process does on the volume; the same for the examiner and for the remote process
    remote_probe the second process, here or on another host, and the wire to it
    report       a check's verdict and sentence

It works in a directory of its own on the volume, removes it whatever happens, and opens no file of a broker.
"""
