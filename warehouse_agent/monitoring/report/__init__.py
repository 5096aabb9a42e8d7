"""`driftline report`: what happened, what failed and what it saved, as pages to be read offline."""
