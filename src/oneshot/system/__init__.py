"""The machine: files and locks, checksums, devices, processes, workers, the terminal.

Of the package, it imports only `errors`.
"""
