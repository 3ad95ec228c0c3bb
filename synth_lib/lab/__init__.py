"""Experiments: train, suites, tasks, runner, probes, measure, bench; the command line is `python -m synth_lib.lab`."""
