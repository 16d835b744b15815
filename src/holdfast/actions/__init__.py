"""What a caller can ask for, by noun: agents, archives, blocks, messages, models, providers, runs, steps, threads and
tools.

A noun with much to it is a package, with its verbs as modules. An action takes what it needs, opens its transactions
itself, and gives back records or what `wire` shows of them. Only actions and the engine touch the store.
"""
