"""Who answers an agent: rules (offline), chat (language models), replay (a recording), and what they share."""
