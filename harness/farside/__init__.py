"""What is loaded beside a candidate, in processes that have the standard library, torch and Triton, and nothing of ours
from outside this folder."""
