"""The nouns that travel between the rooms, and the few habits all rooms share."""
