"""What runs came to: their agents played again, filmed, compared, in suites."""
