"""Makes `python -m discreet` the command line."""

from discreet.cli.main import entry

if __name__ == "__main__":
    entry()
