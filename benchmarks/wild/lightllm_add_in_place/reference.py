def add_in_place(input, other, alpha):
    input.add_(other * alpha)


def reference(input, other, alpha):
    input = input.clone()
    add_in_place(input, other, alpha)
    return {"input": input.clone()}
