# The task's own Model under another name, as harnesses allow that load both into one namespace.
# Must end in: RUNTIME_ERROR, MISSING_ENTRY
class ModelNew(Model):  # noqa: F821
    pass
