"""WHAT: specs, references and baselines of the operations. Imports nothing of this project but itself."""
