"""How the workers' selected elements reach each other.

Every exchange selects from one worker's residual, sends, and yields what to add to the weights in the
same order and with the same bits on every rank, so that replicas stay bit-identical. All of them keep
the mean of the residuals plus what arrived in the weights equal to the mean of all updates.

================  =====================================================================================
``allgather``     every selection to every worker; the bytes grow with their number
``split``         by index range, with a second selection by the range's owner; flat in their number
``hierarchical``  gradients averaged inside a node; between nodes, each process its share of the model
``auto``          allgather or split, whichever the cost model finds cheaper
================  =====================================================================================

All but ``hierarchical`` are one algorithm: each worker's optimizer sees its own gradient. There it sees the
node's mean gradient, and a node counts as one worker; so ``auto`` never takes it by itself.
"""
