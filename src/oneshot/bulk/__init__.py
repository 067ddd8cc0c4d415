"""Bulk: the answers to very many questions, partition by partition, by many processes.

The file of questions is cut into partitions, each of which a worker answers into a Parquet file of
its own, a part. A part appears under its name when it is whole, so that the directory of parts is
also the record of what is done: a call that finds some of them there makes the others.
"""
