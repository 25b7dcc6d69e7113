"""Runs on disk as records and groups, with their scores and reference levels; reads files only."""
