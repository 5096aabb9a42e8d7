"""`driftline demo`: the main job from nothing, with both agents as processes."""
