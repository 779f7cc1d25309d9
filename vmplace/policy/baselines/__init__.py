"""What ``auto`` is held against: the algorithms of the papers, models of stock hosts, plain interleaving.

Nothing of the agent's decisions depends on these.  ``interleave.py`` can be run by the agent, as a control.
"""
