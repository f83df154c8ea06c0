"""What was found, for people: tables, figures and one page."""
