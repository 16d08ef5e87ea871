"""Random numbers in a rank that are the numbers of one device."""
