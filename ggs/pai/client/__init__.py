"""The REST API of OpenPAI and LTP, and what comes back."""
