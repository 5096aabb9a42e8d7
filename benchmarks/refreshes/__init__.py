"""Refreshes and commands of both agents: time, bytes, memory; and the steps of one."""
