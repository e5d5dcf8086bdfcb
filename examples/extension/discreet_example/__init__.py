"""An attack, a protection, a metric and a corpus for discreet, in a package of their own."""
