"""The state of the notebook process that ranks restore: settings, random states, logging."""
