"""Tables of measurements: rows that a command measures, saves and resumes, and their report."""
