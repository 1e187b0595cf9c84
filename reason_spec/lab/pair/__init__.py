"""The recipe of the demonstration pair: training data, training, evaluation."""
