"""Benchmarks, one file for each or for a few of one form. Every file of this folder is loaded and registers its own."""
