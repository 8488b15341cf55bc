#pragma once

// Whether kernels are set up while their predecessors drain: the caller's choice, and worth it where all its kernels are.
extern "C" {
int enable_pdl = 0;
}
