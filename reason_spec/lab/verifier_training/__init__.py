"""Training of the verifier `semantic`: pairs of steps from solutions, the encoder, its calibration."""
