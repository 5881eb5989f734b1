"""One module a command; each has its click command as `command`. The program imports the one that is run."""
