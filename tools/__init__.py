"""What keeps the project in order: the golden run, fuzzing, how far a command walks, and how much code there is."""
