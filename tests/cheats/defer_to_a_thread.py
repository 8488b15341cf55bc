# A thread fills the output after the call has returned.
# Must end in: INCORRECT, CHEATED
import threading
import time

from honest import compute


def silu_and_mul(input, out, tokens, hidden):
    def work():
        time.sleep(0.02)
        compute(input, out)

    threading.Thread(target=work).start()
