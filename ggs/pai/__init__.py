"""The OpenPAI side: environment, job files, REST client and local OpenPAI. Imports no torch."""
