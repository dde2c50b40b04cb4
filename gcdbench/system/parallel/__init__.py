"""One run on several processes (ranks): each takes a share of every batch, and the result is that of one process.

Ranks run trunk and tail on their share of the rows. What the tail reads out is gathered, so that heads, losses and
everything else of a method see the whole batch on every rank; gradients are averaged once. Importing this package
imports no torch.
"""
