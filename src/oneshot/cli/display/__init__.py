"""Progress displays of the command line: observers that write to stderr."""
