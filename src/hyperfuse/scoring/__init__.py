"""The benchmark: every method and network on the same pairs, scored by one protocol, and what is made of the scores."""
