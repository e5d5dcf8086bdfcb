"""Sums of clients' updates that the server can read only as a whole: the protocol, its keys and its noise."""
