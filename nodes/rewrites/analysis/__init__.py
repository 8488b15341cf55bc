"""What a kernel, a loop, an access or a launch is: read only, and no rewrite knows another through here."""
