"""What a rank reports: metrics, progress, notices, output, failures and final measurements."""
