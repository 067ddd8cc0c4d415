"""Generated graphs: worlds with known rules, and random ones of any size."""
