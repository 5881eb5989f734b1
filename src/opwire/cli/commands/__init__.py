"""The commands. Each is a click command `NAME_command`; the program imports only the module of the one that runs."""
