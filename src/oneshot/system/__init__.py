"""The machine: files and locks, checksums, devices, processes, workers, the terminal.

Imports nothing of the package but `errors`.
"""
