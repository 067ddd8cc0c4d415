"""Pictures and tables of results; needs the extra `plot`."""
