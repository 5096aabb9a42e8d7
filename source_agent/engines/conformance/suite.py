"""All tests of the suite, to be imported by a test module that has a fixture `legacy`."""

from source_agent.engines.conformance.test_commands import *  # noqa: F403
from source_agent.engines.conformance.test_locators import *  # noqa: F403
from source_agent.engines.conformance.test_own_values import *  # noqa: F403
from source_agent.engines.conformance.test_reads import *  # noqa: F403
from source_agent.engines.conformance.test_relations import *  # noqa: F403
from source_agent.engines.conformance.test_snapshots import *  # noqa: F403
from source_agent.engines.conformance.test_values import *  # noqa: F403
