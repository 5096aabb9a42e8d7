"""Snapshot differentials: the changes between two files of one relation, without a source agent."""
