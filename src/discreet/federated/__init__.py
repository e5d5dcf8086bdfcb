"""Federated training on Flower: clients keep their text and send updates; a server sums them."""
