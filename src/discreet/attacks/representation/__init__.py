"""Attacks on representations: vectors that a server sees one by one."""
