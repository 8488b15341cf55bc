"""What right means: inputs drawn, expected values, tolerances, properties, sizes."""
