"""Remedies that the warehouse agent prints: of readers, storage, Spark, views and parts."""
