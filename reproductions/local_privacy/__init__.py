"""Local privacy for representations: an encoder and noise on the user's side, with a BiLSTM and with MiniLM."""
