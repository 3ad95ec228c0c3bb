"""Texts to learn from: corpora and their tokenizers, a grammar that makes sentences, baselines without a model."""
