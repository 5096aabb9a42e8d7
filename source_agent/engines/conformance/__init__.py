"""The conformance suite of the engines: `Engine` and `Session`, tested on a real database.

For whoever writes an engine. A `Legacy` (`legacy`) is an empty database of the engine, its owner
and its dialect; a fixture `legacy` hands one to each test. Then either

    pytest --pyargs source_agent.engines.conformance -p acme.fixtures   # which has the fixture

or a test module of one's own, which has the fixture and imports the tests:

    from source_agent.engines.conformance.suite import *

What the engine cannot do it declares (`Legacy.lacks`). A test of it then passes only if the engine
refuses it, or says so to the DBA: nothing is skipped (`lacking`).

Nothing of the agent imports this; it needs pytest, which the extra `conformance` installs.
"""
