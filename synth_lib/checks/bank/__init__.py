"""The exercises: one file per chapter with their inputs, right answers and known mistakes. See `synth_lib.checks`."""
