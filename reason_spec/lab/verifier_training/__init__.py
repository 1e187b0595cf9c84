"""Training of the verifier `equivalence`: pairs of steps from solutions, the encoder, its calibration."""
