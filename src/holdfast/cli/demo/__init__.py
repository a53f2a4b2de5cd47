"""The demo: workers settle payments under locks, one is frozen past its lease, and the fence refuses its write.

plan      how many, how long, which worker freezes where
ledger    the books, and the fence that guards them
messages  what the director and the workers say to each other
worker    a process that settles batches
crew      the worker processes: start, orders, reports, stop, end
director  deals the batches and drives the order of events by facts
outcome   what was seen, and whether it is what should be
show      what people see
stage     all of it, in a temporary directory, and nothing left behind
"""
