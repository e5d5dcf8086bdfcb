"""Attacks by a malicious server that sends out crafted weights."""
