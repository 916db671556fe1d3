"""Methods of others that save bytes, under GGS's contract and with the same counters of bytes.

Each is one file, written from its public description over ``ggs.dist``, and used like ``ggs.GGS``.
"""
