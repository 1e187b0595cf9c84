"""What a pass costs, what speculation can bring, and how much of it is worth it."""
