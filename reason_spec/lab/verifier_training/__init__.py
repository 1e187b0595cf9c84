"""Training of the semantic verifier: pairs of steps from solutions, the encoder, its calibration."""
