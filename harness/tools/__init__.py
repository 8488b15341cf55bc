"""What other programs say of a build: compute-sanitizer, disassemblers."""
