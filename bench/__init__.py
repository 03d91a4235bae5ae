"""Benchmarks beside other libraries, studies of single questions, and the tables and pictures of their results."""

import argparse


def parser(command, description):
    """The command line of `python -m bench COMMAND`."""
    how = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m bench {command}", description=description, formatter_class=how)
