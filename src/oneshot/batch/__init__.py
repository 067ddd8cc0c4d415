"""Batch prediction: files of queries in, files of answers out, in parts that allow to resume."""
