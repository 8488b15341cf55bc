def reference(dout):
    """As the spec says, in the dtype that is given."""
    return {"dbias": dout.sum(0), "colmax": dout.amax(0)}
