"""Experiments: the training loop, suites of runs, probes, and what measures time and memory."""
