"""Places where a job runs, one a file: `process` is this machine."""
