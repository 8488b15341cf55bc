"""The parent's end: workers, the fork server, who watches them, what they may open, where they write."""
