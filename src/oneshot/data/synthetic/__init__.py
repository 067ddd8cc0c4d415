"""Generated graphs: worlds with known rules, and random graphs of any size."""
