"""A job file of protocol version 2 as OpenPAI reads it."""
