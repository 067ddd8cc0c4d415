"""Public data sets: the catalogue, downloads and archives."""
