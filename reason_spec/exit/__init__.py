"""Early exit: reads the thinking step by step and decides where it may end."""
