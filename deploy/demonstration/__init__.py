"""The demonstration (`deploy/demo`): the main job from nothing, with both agents as processes."""
