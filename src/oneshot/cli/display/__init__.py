"""What the command line displays while the library works: observers that draw on stderr."""
