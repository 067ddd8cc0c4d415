"""Plots of results; needs the extra `plot`."""
