"""Search for the fastest settings at the same accuracy, and calibration of verifier thresholds."""
