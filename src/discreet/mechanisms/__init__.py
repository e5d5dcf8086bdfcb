"""Mechanisms: frozen dataclasses with public parameters that randomize a value and have a cost, `.event`."""
