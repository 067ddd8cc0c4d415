"""Tables of measurements: rows that a command measures, keeps and resumes, and their report."""
