"""Agents, servers, links and doubles that tests are made with."""
