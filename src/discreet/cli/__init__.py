"""The command line: strings become objects here, once, and results become words or JSON."""
