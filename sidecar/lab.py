"""The command line of the lab: runs it, and keeps a row of each run."""
