"""Many queries: files of queries in, files of answers out, in parts that a killed job keeps."""
