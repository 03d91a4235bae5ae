"""Benchmarks beside other libraries, studies of single questions, and the tables and pictures of their results."""
