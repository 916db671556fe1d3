"""``ggs report``: one HTML file that compares runs, with everything it needs inside. Imports no torch."""
