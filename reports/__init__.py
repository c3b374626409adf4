"""Roof: tables, figures and a page from records. Never trains, never imports torch."""

import os

# Thousands of small products: threads would spend ten times the work waiting for each other. Takes effect where numpy
# comes later.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
