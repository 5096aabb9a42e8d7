"""Methods of comparison through both agents: groups, hashes, a new one, a switch midway."""
