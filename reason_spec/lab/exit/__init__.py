"""Early exit offline: stored answers are read, a policy is trained, replayed and given a threshold."""
