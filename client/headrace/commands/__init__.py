"""The commands of `headrace`, one a file; each has `register(app)`."""
