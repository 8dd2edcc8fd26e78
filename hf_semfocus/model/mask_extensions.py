"""Mask strategies that come with a checkpoint beyond those of the package. The package itself has none.

A checkpoint whose model uses strategies of the user's own has its own version of this file, which imports them.
"""
