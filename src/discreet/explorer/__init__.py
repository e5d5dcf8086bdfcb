"""A local page where one types a sentence, moves the protection, and watches what an attacker reads back."""
